"""Operators that change or delete a job. Each is idempotent, and explains why it cannot act."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.airflow.instance import Instance
from tests.airflow.site import FOREVER, SECONDS, Site, document
from tests.waiting import until
from tf_dist.errors import AlreadyExists, InvalidJob, NotFound

pytest.importorskip("airflow", reason="Airflow is missing: pip install 'tf-dist[airflow]'")

from tf_dist.airflow import (
    DeleteTFJobOperator,
    GangAdmittedSensor,
    ResumeTFJobOperator,
    ScaleTFJobOperator,
    SubmitTFJobOperator,
    SuspendTFJobOperator,
    TFJob,
    TFJobHook,
    TFJobSensor,
)
from tf_dist.airflow.version_compat import AirflowFailException, AirflowSkipException

pytestmark = pytest.mark.usefixtures("controller_leads", "nothing_is_left")
CHANGES: Any = pytest.mark.parametrize(
    ("kind", "arguments"),
    [(SuspendTFJobOperator, {}), (ResumeTFJobOperator, {}), (ScaleTFJobOperator, {"workers": 2})],
)


def done(kind: Any, site: Site, **arguments: Any) -> Any:
    given = {"job_name": "a", **arguments}
    return kind(task_id="act", config_file=site.kubeconfig, **given).execute(Instance("r").context())


def is_at(site: Site, goal: str) -> None:
    done(TFJobSensor, site, until=goal, poke_interval=0.05, timeout=SECONDS)


def workers(site: Site) -> Any:
    (job,) = site.jobs()
    return job["spec"]["tfReplicaSpecs"]["Worker"]["replicas"]


def test_actions_from_submission_to_deletion_are_idempotent(cluster_site: Site) -> None:
    submitted = SubmitTFJobOperator(
        task_id="s", job=document(FOREVER), name="a", driver="controller", config_file=cluster_site.kubeconfig
    )
    found = submitted.execute(Instance("r").context())
    assert found["name"] == "a"
    is_at(cluster_site, "running")
    for _ in range(2):
        assert done(SuspendTFJobOperator, cluster_site)["uid"] == found["uid"]
        is_at(cluster_site, "suspended")
    assert cluster_site.pods() == []
    for _ in range(2):
        done(ScaleTFJobOperator, cluster_site, job_name="tfjob/a", workers="2")
        assert workers(cluster_site) == 2
    for _ in range(2):
        done(ResumeTFJobOperator, cluster_site)
    is_at(cluster_site, "running")
    until(lambda: len(cluster_site.pods()) == 2, SECONDS)
    assert done(DeleteTFJobOperator, cluster_site, wait_for_completion=True)["uid"] == found["uid"]
    assert (cluster_site.jobs(), cluster_site.pods()) == ([], [])
    assert done(DeleteTFJobOperator, cluster_site) is None


@CHANGES
def test_missing_or_ended_job_fails_skips_or_is_ignored(
    cluster_site: Site, kind: Any, arguments: dict[str, Any]
) -> None:
    with pytest.raises(NotFound, match="there is no job a in namespace default"):
        done(kind, cluster_site, **arguments)
    with pytest.raises(AirflowSkipException, match="there is no job a"):
        done(kind, cluster_site, if_missing="skip", **arguments)
    assert done(kind, cluster_site, if_missing="ignore", **arguments) is None
    cluster_site.submit(document("true", name="a"))
    is_at(cluster_site, "finished")
    with pytest.raises(AirflowFailException, match="tfjob/a is Succeeded: it has ended"):
        done(kind, cluster_site, **arguments)
    with pytest.raises(AirflowSkipException, match="it has ended"):
        done(kind, cluster_site, if_ended="skip", **arguments)
    assert done(kind, cluster_site, if_ended="ignore", **arguments)["status"] == "Succeeded"


def test_rejects_invalid_number_of_workers(cluster_site: Site) -> None:
    cluster_site.submit(document(FOREVER, name="a", schedulingPolicy={"minAvailable": 1}))
    with pytest.raises(AirflowFailException, match="with 0 workers: there are no replicas at all"):
        done(ScaleTFJobOperator, cluster_site, workers=0)
    assert workers(cluster_site) == 1


def test_repeated_submission_returns_own_job_only(cluster_site: Site, instance: Instance) -> None:
    task = SubmitTFJobOperator(
        task_id="train", job=document(FOREVER, name="a"), driver="controller", config_file=cluster_site.kubeconfig
    )
    first = task.execute(instance.context())
    assert task.execute(instance.retry().context()) == first
    with pytest.raises(AlreadyExists, match=r"there is a job a .* does not belong to this task"):
        task.execute(Instance("another run").context())
    assert cluster_site.names() == ["a"]


def test_cleared_submission_reports_ended_job(cluster_site: Site, instance: Instance) -> None:
    def submit(script: str, name: str) -> SubmitTFJobOperator:
        job = document(script, name=name)
        return SubmitTFJobOperator(task_id="train", job=job, driver="controller", config_file=cluster_site.kubeconfig)

    failed = submit("exit 3", "a")
    failed.execute(instance.context())
    is_at(cluster_site, "finished")
    with pytest.raises(AlreadyExists, match=r"an earlier try of this task, and is Failed \(.*delete tfjob/a -n def"):
        failed.execute(instance.retry().context())
    other = Instance("another run")
    done_well = submit("true", "b")
    first = done_well.execute(other.context())
    done(TFJobSensor, cluster_site, job_name="b", until="succeeded", poke_interval=0.05, timeout=SECONDS)
    assert done_well.execute(other.retry().context())["uid"] == first["uid"]


def test_submission_uses_generate_name(cluster_site: Site, instance: Instance) -> None:
    job = document("true")
    job["metadata"] = {"generateName": "a-"}
    task = SubmitTFJobOperator(task_id="train", job=job, driver="controller", config_file=cluster_site.kubeconfig)
    name = task.execute(instance.context())["name"]
    assert name.startswith("a-")
    assert len(name) > len("a-")


@pytest.mark.parametrize(
    ("kind", "arguments", "paths"),
    [
        (SuspendTFJobOperator, {"job_name": "pod/a", "if_ended": "never"}, ["job_name", "if_ended"]),
        (ResumeTFJobOperator, {"job_name": None, "if_missing": "no"}, ["job_name", "if_missing"]),
        (ScaleTFJobOperator, {"job_name": "A", "workers": -1}, ["job_name", "workers"]),
        (ScaleTFJobOperator, {"workers": "many"}, ["workers"]),
        (DeleteTFJobOperator, {"job_name": ""}, ["job_name"]),
        (TFJobSensor, {"until": "done"}, ["until"]),
        (TFJobSensor, {"job_name": "a b"}, ["job_name"]),
        (TFJobSensor, {"namespace": "A_B", "get_logs": "no", "deferrable": 2}, ["namespace", "deferrable", "get_logs"]),
        (GangAdmittedSensor, {"in_cluster": "no"}, ["in_cluster"]),
        (DeleteTFJobOperator, {"namespace": "A_B", "wait_for_completion": "no"}, ["namespace", "wait_for_completion"]),
    ],
)
def test_invalid_arguments_fail_when_dag_is_parsed(kind: Any, arguments: dict[str, Any], paths: list[str]) -> None:
    with pytest.raises(InvalidJob) as caught:
        kind(task_id="act", **{"job_name": "a", **arguments})
    assert [problem.path for problem in caught.value.problems] == paths
    assert all(problem.hint for problem in caught.value.problems)


OF_A_WAIT = (
    "wait_for_completion",
    "deferrable",
    "poll_interval",
    "get_logs",
    "startup_timeout_seconds",
    "on_finish_action",
    "on_kill_action",
    "skip_on_exit_code",
)


def test_submission_rejects_wait_arguments() -> None:
    with pytest.raises(InvalidJob) as caught:
        SubmitTFJobOperator(task_id="s", job=document(), **dict.fromkeys(OF_A_WAIT))
    assert [problem.path for problem in caught.value.problems] == list(OF_A_WAIT)


def test_rejects_rendered_job_name_that_is_invalid(cluster_site: Site) -> None:
    task = SuspendTFJobOperator(task_id="act", job_name="{{ params.job }}", config_file=cluster_site.kubeconfig)
    task.render_template_fields({"params": {"job": "no job"}})
    with pytest.raises(AirflowFailException, match="job_name: 'no job' is not a job"):
        task.execute(Instance("r").context())


def test_hook_returns_client(cluster_site: Site) -> None:
    with TFJobHook(config_file=cluster_site.kubeconfig).client() as client:
        job = client.submit(TFJob.from_yaml(yaml.safe_dump(document(FOREVER, name="a"))))
        assert client.wait("a", "running", timeout=SECONDS).uid == job.uid
        client.delete(job, wait=True, timeout=SECONDS)
