"""Secrets that Airflow masks appear in no rendered field, log, stored value or event."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.airflow.instance import Instance, event_of
from tests.airflow.running import run
from tests.airflow.site import Site, document

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

from airflow.sdk import DAG, Asset

from tf_dist.airflow import JobFailed, SuspendTFJobOperator, TFJobOperator, TFJobSensor, TFJobTrigger
from tf_dist.airflow.jobs.lineage import job_lineage
from tf_dist.airflow.masking import masked, sealed, secrets_in, unsealed
from tf_dist.airflow.version_compat import AirflowFailException, TaskDeferred
from tf_dist.errors import TFDistError

masker = pytest.importorskip("airflow.sdk._shared.secrets_masker", reason="another Airflow keeps its masker elsewhere")

pytestmark = pytest.mark.usefixtures("nothing_is_left")
VARIABLE, PASSWORD, TOKEN = "of-a-variable-1", "pass/word%of+2", "token-of-3"
SECRETS = (VARIABLE, PASSWORD, TOKEN)
SCRIPT = (
    "echo 'lr=0.5 {{ var.value.db_password }} checkpoint=s3://{{ conn.db.password }}/7'\n"
    "echo '{{ conn.db.extra_dejson.token }}'\n"
)
MODEL = Asset("model")


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Define a variable and a connection, and reset the masker before and after each test."""
    extra = {"token": TOKEN}
    monkeypatch.setenv("AIRFLOW_VAR_DB_PASSWORD", VARIABLE)
    connection = {"conn_type": "http", "host": "h", "password": PASSWORD, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps(connection))
    masker.reset_secrets_masker()
    yield
    masker.reset_secrets_masker()


def shown(value: Any) -> list[str]:
    """The secrets that the value contains."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return [secret for secret in SECRETS if secret in text]


def rendered(operator: Any, instance: Instance) -> Any:
    """Render like a real task, and return the context and the fields that Airflow shows."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.context import ConnectionAccessor, VariableAccessor

    context = {
        **instance.context(),
        "var": {"value": VariableAccessor(deserialize_json=False)},
        "conn": ConnectionAccessor(),
    }
    operator.render_template_fields(context, operator.dag.get_template_env())
    return context, task_runner._serialize_rendered_fields(operator)


def operator_of(site: Site, job: Any, **arguments: Any) -> TFJobOperator:
    with DAG("secrets"):
        return TFJobOperator(task_id="train", job=job, config_file=site.kubeconfig, **arguments)


@pytest.mark.parametrize("where", ["job", "file", "overrides", "env_vars"])
def test_rendered_fields_contain_no_secret(site: Site, instance: Instance, tmp_path: Path, where: str) -> None:
    path = "spec.tfReplicaSpecs.Worker.template.spec.containers[0]"
    job: Any = document(SCRIPT) if where == "job" else document()
    given: dict[str, Any] = {}
    if where == "file":
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(document(SCRIPT)))
        job = str(tmp_path / "job.yaml")
    elif where == "overrides":
        given["overrides"] = {f"{path}.env": [{"name": "A", "value": SCRIPT}]}
    elif where == "env_vars":
        given["env_vars"] = {"SAID": SCRIPT}
    operator = operator_of(site, job, **given)
    for _ in range(2):
        _, fields = rendered(operator, instance)
        assert shown(fields) == []
        assert "***" in str(fields["job"])
        assert operator.request is not None
        assert shown(operator.request.entry.document) == list(SECRETS), "the job itself has them"


def test_invalid_job_error_contains_no_secret(site: Site, instance: Instance) -> None:
    body = document(SCRIPT)
    body["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = "{{ var.value.db_password }}"
    operator = operator_of(site, body)
    context, fields = rendered(operator, instance)
    assert shown(fields) == []
    with pytest.raises(AirflowFailException, match="the job cannot be run") as caught:
        operator.execute(context)
    assert shown(str(caught.value)) == []
    assert shown(instance.xcoms) == []


@pytest.mark.parametrize("kind", [SuspendTFJobOperator, TFJobSensor])
def test_invalid_job_name_error_contains_no_secret(site: Site, instance: Instance, kind: Any) -> None:
    with DAG("secrets"):
        operator = kind(task_id="act", job_name="{{ conn.db.password }}", config_file=site.kubeconfig)
    context, _ = rendered(operator, instance)
    with pytest.raises(AirflowFailException, match="job_name: ") as caught:
        operator.execute(context)
    assert shown(str(caught.value)) == []


@pytest.mark.parametrize("kind", [TFJobOperator, SuspendTFJobOperator, TFJobSensor])
@pytest.mark.parametrize("deferrable", [False, True], ids=["worker", "triggerer"])
def test_wrong_connection_error_contains_no_secret(site: Site, instance: Instance, kind: Any, deferrable: bool) -> None:
    given: dict[str, Any] = {"job": document()} if kind is TFJobOperator else {"job_name": "a"}
    if kind is not SuspendTFJobOperator:
        given["deferrable"] = deferrable
    with DAG("secrets"):
        operator = kind(task_id="act", config_file="/{{ var.value.db_password }}/kubeconfig", **given)
    context, _ = rendered(operator, instance)
    with pytest.raises(TFDistError, match="kubeconfig") as caught:
        operator.execute(context)
    assert shown(str(caught.value)) == []


@pytest.mark.parametrize("code", [0, 3])
def test_task_in_worker_stores_no_secret(
    site: Site, instance: Instance, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    url = "http://x/{name}?a={{ var.value.db_password }}"
    operator = operator_of(site, document(f"{SCRIPT}exit {code}"), outlets=[MODEL], job_url=url)
    context, _ = rendered(operator, instance)
    if code:
        with pytest.raises(JobFailed) as caught:
            operator.execute(context)
        assert shown(str(caught.value)) == []
        assert "***" in instance.xcoms["outcome"]["log"]
    else:
        assert operator.execute(context)["checkpoint"] == "s3://***/7"
        assert instance.events[MODEL].extra["checkpoint"] == "s3://***/7"
    assert shown(instance.xcoms) == []
    assert shown(instance.store) == []
    assert shown(operator.result) == []
    assert shown(str(job_lineage(operator.result))) == []
    assert shown(str(instance.events[MODEL].extra)) == []


@pytest.mark.parametrize("code", [0, 3])
def test_triggerer_logs_and_sends_no_secret(
    site: Site, instance: Instance, code: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    operator = operator_of(site, document(f"{SCRIPT}exit {code}"), deferrable=True)
    context, _ = rendered(operator, instance)
    with pytest.raises(TaskDeferred) as caught:
        operator.execute(context)
    _, arguments = caught.value.trigger.serialize()
    assert shown(arguments) == []
    assert shown(instance.xcoms) == []
    masker.reset_secrets_masker()  # the triggerer is another process
    with caplog.at_level(logging.INFO):
        event = event_of(TFJobTrigger(**arguments))
    out, err = capfd.readouterr()
    assert "lr=0.5" in caplog.text + out + err
    assert shown(caplog.text + out + err) == []
    assert shown(event) == []
    assert event["result"]["checkpoint"] == "s3://***/7"


def test_results_of_dag_run_contain_no_secret(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    with DAG("whole") as dag:
        TFJobOperator(task_id="train", job=document(SCRIPT), config_file=site.kubeconfig, deferrable=True)
    found = run(dag)
    assert found.tasks == {"train": "success"}
    assert shown(found.xcom("train")) == shown(found.xcom("train", "outcome")) == []


def test_finds_secrets_in_documents() -> None:
    for secret in ("first-secret", "second/secret", "a*b.c(d)"):
        masker.mask_secret(secret)
    texts = {"a": ["x first-secret y first-secretsecond/secret", {"b": "a*b.c(d)"}], "c": "*** first-secret"}
    found = secrets_in([texts, None, 5])
    assert {"first-secret", "a*b.c(d)"} <= {*found}
    assert all(len(one) > 5 for one in found)
    hidden = masked({**texts, "n": (1.5, None, "first-secret")})
    assert hidden["a"][0] == "x *** y ******"
    assert hidden["n"] == (1.5, None, "***")


def test_unseals_only_with_right_key() -> None:
    from tf_dist.airflow.masking import new_key

    key = new_key()
    token = sealed(["a-secret"], key)
    assert "a-secret" not in token
    assert unsealed(token, key) == ["a-secret"]
    assert unsealed(token, new_key()) == unsealed(token, "") == []
