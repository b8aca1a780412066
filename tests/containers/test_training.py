"""The shipped jobs in real containers: by the controller in all three formats, by ``tf-dist run``, in steps of Argo and
tasks of Airflow."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.argo.expressions import substituted
from tests.argo.launcher.launching import definition
from tests.containers.conftest import IMAGE, TFJOBS, Namespace, shipped
from tests.waiting import until
from tf_dist.argo.launcher.contract import OUTPUTS

pytestmark = [pytest.mark.containers, pytest.mark.timeout(300)]
ACCURATE = 0.9


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("tfjob.yaml", TFJOBS),
        ("tfjob-v1alpha1.yaml", "tfjobs.v1alpha1.kubeflow.org"),
        ("volcano-job.yaml", "jobs.batch.volcano.sh"),
    ],
)
def test_the_shipped_examples_train_as_they_are(namespace: Namespace, file: str, kind: str) -> None:
    name = namespace.apply(shipped(file))
    log = namespace.tf_dist("logs", "-f", name)
    namespace.tf_dist("wait", name, "--timeout", "60")
    accuracy = [line for line in log.splitlines() if "checkpoint=" in line][-1].partition("accuracy=")[2].split()[0]
    assert float(accuracy) >= ACCURATE
    namespace.delete(name, kind)


def test_run_reports_job_and_leaves_nothing(namespace: Namespace, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(shipped("tfjob.yaml", name="run"))
    report = json.loads(namespace.tf_dist("run", str(file), "-o", "json", "--kubeconfig", namespace.kubeconfig))
    assert (report["state"], report["exitCode"]) == ("Succeeded", 0)
    assert report["metrics"]["accuracy"] >= ACCURATE
    assert report["metrics"]["step"] == 4000
    assert "run" not in namespace.jobs()
    assert not namespace.objects("leases")


def test_a_step_of_argo_trains_and_hands_over_its_results(namespace: Namespace, tmp_path: Path) -> None:
    """The container that ``tf-dist workflows export`` writes, in a pod with the role that it writes, without Argo."""
    if namespace.kubectl("get", "crd", "workflows.argoproj.io", "--ignore-not-found"):
        pytest.skip("Argo itself is there: test_argo runs its steps")
    namespace.run("tf-dist", "workflows", "export", str(tmp_path), "-n", namespace.name, "--image", IMAGE)
    namespace.kubectl("apply", "-f", str(tmp_path / "rbac.yaml"))
    workflows = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    workflows |= definition("Workflow", "workflows")
    namespace.kubectl("apply", "-f", "-", given=yaml.safe_dump(workflows))
    try:
        namespace.kubectl("wait", "--for=condition=Established", "crd/workflows.argoproj.io", "--timeout=30s")
        workflow = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": "wf"}}
        namespace.kubectl("create", "-f", "-", given=yaml.safe_dump(workflow | {"status": {"phase": "Running"}}))
        uid = namespace.job("wf", "workflows.argoproj.io")["metadata"]["uid"]
        namespace.kubectl("create", "-f", "-", given=yaml.safe_dump(_step(tmp_path / "tf-dist-templates.yaml", uid)))
        until(lambda: namespace.pods()["step"]["status"]["phase"] != "Pending", 60, every=0.5)
        log = namespace.kubectl("logs", "-f", "step")
        outputs = dict(re.findall(r"^output (\S+)=(.*)$", log, re.MULTILINE))
        assert outputs.keys() >= OUTPUTS.keys()
        assert (outputs["outcome"], outputs["status"]) == ("succeeded", "Succeeded")
        assert float(outputs["metric-accuracy"]) >= ACCURATE
        assert "model.ckpt-4000" in outputs["checkpoint"]
        namespace.kubectl("delete", "pod", "step", "--now")
        namespace.delete(outputs["job"])
    finally:
        namespace.kubectl("delete", "crd", "workflows.argoproj.io")


def _step(templates: Path, workflow_uid: str) -> dict[str, object]:
    """The pod that Argo makes of the template ``tf-job``; it prints what it has written for the next step."""
    found = yaml.safe_load(templates.read_text())["spec"]["templates"]
    template = next(one for one in found if one["name"] == "tf-job")
    inputs = {one["name"]: one.get("default", "") for one in template["inputs"]["parameters"]}
    scope = {f"inputs.parameters.{name}": value for name, value in {**inputs, "job": shipped("tfjob.yaml")}.items()}
    scope |= {"workflow.name": "wf", "workflow.uid": workflow_uid, "node.name": "wf.train", "retries": "0"}
    container = template["container"]
    arguments = [*container["command"], *(substituted(word, scope) for word in container["args"])]
    script = '"$@"; code=$?; cd /tf-dist/out; for file in *; do echo "output $file=$(cat $file)"; done; exit $code'
    image = substituted(container["image"], scope)
    main = {**container, "name": "main", "image": image, "command": ["sh", "-c", script, "sh"], "args": arguments}
    spec = {
        "serviceAccountName": "tf-dist-argo",
        "restartPolicy": "Never",
        "containers": [main],
        "volumes": [{"name": "tf-dist-out", "emptyDir": {}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "step"}, "spec": spec}


@pytest.mark.filterwarnings("ignore")
def test_a_task_of_airflow_trains_and_pushes_its_results(
    namespace: Namespace, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")
    request.getfixturevalue("airflow_db")
    from airflow.sdk import DAG

    from tests.airflow.running import run
    from tf_dist.airflow import TFJobOperator

    job = yaml.safe_load(shipped("tfjob.yaml", name="task"))
    with DAG("containers", schedule=None) as dag:
        TFJobOperator(task_id="train", job=job, namespace=namespace.name, config_file=namespace.kubeconfig)
    found = run(dag)
    assert found.tasks == {"train": "success"}
    result = found.xcom("train")
    assert result["metrics"]["step"] == 4000
    assert result["metrics"]["accuracy"] >= ACCURATE
    assert not [name for name in namespace.jobs() if name.startswith("task")]
