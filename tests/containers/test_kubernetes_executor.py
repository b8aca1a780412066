"""Airflow with the KubernetesExecutor: each try of a task runs in a pod of the cluster, as the job's replicas do.

Scheduler, API server, DAG processor and triggerer are processes of the tests. The pods of tasks reach them at the
address of this machine in the network of the nodes.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.airflow.stack import Stack, Task, eventually
from tests.containers.conftest import TFJOBS, TRAINER, Namespace, new_namespace, written

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1200)]
VARIABLE = "TF_DIST_TEST_AIRFLOW"
DAGS = Path(__file__).parent / "kubernetes_executor" / "dags.py"
# The settings that task pods need. Airflow's Helm chart puts them in an airflow.cfg that it mounts in these pods.
SHARED = (
    "AIRFLOW__CORE__EXECUTION_API_SERVER_URL",
    "AIRFLOW__TF_DIST__DEPLOYMENT",
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT",
)


@dataclass(frozen=True)
class Site:
    """The namespaces of Airflow and of its jobs. ``kubeconfig`` is that of the triggerer's service account."""

    airflow: Namespace
    space: Namespace
    kubeconfig: str

    def jobs(self) -> list[dict[str, Any]]:
        return self.space.objects(TFJOBS)

    def pods(self) -> list[str]:
        """The names of the pods of jobs that have not ended."""
        return [name for name, pod in self.space.pods().items() if not is_over(pod)]

    def uids(self, task: Task) -> set[str]:
        """The uids of the pods of a task's job."""
        pods = self.space.pods()
        return {pods[name]["metadata"]["uid"] for name in task.pods()}

    def of(self, task: Task, number: int | None = None) -> dict[str, dict[str, Any]]:
        """The pods in which the task ran, by name. ``number`` selects the pods of a try."""
        labels = f"dag_id={task.dag_id},run_id={task.run_id}" + (f",try_number={number}" if number else "")
        return {pod["metadata"]["name"]: pod for pod in self.airflow.objects("pods", "-l", labels)}

    def let_end(self, task: Task) -> None:
        """Let the job of a task end."""
        for name in sorted(task.pods(), reverse=True):  # the job ends with worker 0
            self.space.kubectl("exec", name, "--", "touch", "/tmp/over")


def is_over(pod: dict[str, Any]) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def until_followed(task: Task) -> str:
    """Wait until the log of the task contains the logs of its job, and return the job's uid."""

    def followed() -> bool:
        if task.state not in ("running", "deferred"):  # before that, the log may not exist
            return False
        log = task.log()
        return all(f"worker-{number} | up" in log for number in range(2))

    eventually(followed)
    return task.job()


def until_gone(task: Task, uid: str) -> None:
    """Wait until the job of the task and its pods are deleted."""
    space = task.stack.site.space
    eventually(lambda: not task.job() and not space.objects("pods", "-l", f"tf-dist.dev/job-uid={uid}"))


@pytest.fixture(scope="session")
def image() -> str:
    """An image with Airflow and tf-dist."""
    found = os.environ.get(VARIABLE)
    if not found:
        pytest.skip(f"no image with Airflow: {VARIABLE} names one that the nodes have (docs/testing.md)")
    return found


@pytest.fixture(scope="module")
def airflow_namespace(installed: Namespace) -> Iterator[Namespace]:
    yield from new_namespace(installed)


def kubeconfig_of(account: str, space: Namespace, folder: Path) -> str:
    """A kubeconfig with the token of a service account of the namespace."""
    config = yaml.safe_load(space.kubectl("config", "view", "--raw", "--minify", "--flatten"))
    token = space.kubectl("create", "token", account, "--duration", "3h").strip()
    (user,), (context,) = config["users"], config["contexts"]
    user["user"], context["context"]["namespace"] = {"token": token}, space.name
    path = folder / f"{account}.yaml"
    path.write_text(yaml.safe_dump(config))
    path.chmod(0o600)
    return str(path)


def address_towards(cluster: Namespace) -> str:
    """The address at which the nodes of the cluster reach this machine."""
    addresses = cluster.objects("nodes")[0]["status"]["addresses"]
    node = next(one["address"] for one in addresses if one["type"] == "InternalIP")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((node, 1))  # sends nothing
        return str(probe.getsockname()[0])


def pod_template(stack: Stack, image: str) -> str:
    """The template of the pods of tasks."""
    names = [*SHARED, *(name for name in stack.env if name.startswith("TD_"))]
    container = {
        "name": "base",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": name, "value": stack.env[name]} for name in names],
        "volumeMounts": [{"name": "dags", "mountPath": "/opt/airflow/dags/dags.py", "subPath": "dags.py"}],
    }
    spec = {
        "serviceAccountName": "airflow-worker",
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "dags", "configMap": {"name": "dags"}}],
    }
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "task"}, "spec": spec})


@pytest.fixture(scope="module")
def stack(image: str, installed: Namespace, namespace: Namespace, airflow_namespace: Namespace) -> Iterator[Stack]:
    """Airflow. In the namespace of the jobs, its accounts have the permissions from the documentation."""
    pytest.importorskip("airflow.providers.cncf.kubernetes", reason="Airflow's Kubernetes provider is missing")
    airflow = airflow_namespace
    for account in ("airflow-worker", "airflow-triggerer"):
        airflow.kubectl("create", "serviceaccount", account)
    airflow.kubectl("create", "configmap", "dags", f"--from-file={DAGS}")
    (binding,) = written("kubectl create rolebinding", pages=("airflow-in-production.md",))
    binding = binding.replace("-n research", f"-n {namespace.name}").replace(" airflow:", f" {airflow.name}:")
    installed.run("sh", "-ec", binding)
    with tempfile.TemporaryDirectory(prefix="td-executor-") as scratch:
        folder = Path(scratch)
        site: Any = Site(airflow, namespace, kubeconfig_of("airflow-triggerer", airflow, folder))
        (folder / "airflow").mkdir()
        database = f"sqlite:///{folder}/airflow.db?timeout=60"
        found = Stack(folder / "airflow", site, database, address=address_towards(installed), dags=DAGS)
        try:
            template = folder / "pod.yaml"
            found.env |= {
                "KUBECONFIG": site.kubeconfig,
                "TD_TRAINER": TRAINER,
                "TD_NAMESPACE": namespace.name,
                "TD_FORBIDDEN": airflow.name,
                "AIRFLOW__TF_DIST__DEPLOYMENT": airflow.name,
                "AIRFLOW__CORE__EXECUTOR": "KubernetesExecutor",
                "AIRFLOW__CORE__PARALLELISM": "16",
                "AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER": "False",
                "AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE": installed.kubeconfig,
                "AIRFLOW__KUBERNETES_EXECUTOR__NAMESPACE": airflow.name,
                "AIRFLOW__KUBERNETES_EXECUTOR__POD_TEMPLATE_FILE": str(template),
                "AIRFLOW__KUBERNETES_EXECUTOR__DELETE_WORKER_PODS": "False",  # the tests read their logs
            }
            template.write_text(pod_template(found, image))
            found.start()
            yield found
        finally:
            found.stop()


@pytest.fixture(scope="module")
def tasks(stack: Stack) -> dict[str, Task]:
    """The tasks of all tests. They start together, because most of the time they wait for pods."""
    begun = {name: stack.run("here", name) for name in ("whole", "ended", "cleared", "evicted", "lost")}
    begun |= {f"deferred-{name}": stack.run("deferred", f"deferred-{name}") for name in ("whole", "ended", "cleared")}
    return begun | {"forbidden": stack.run("forbidden", "forbidden")}


def test_task_in_pod_follows_its_job(stack: Stack, tasks: dict[str, Task]) -> None:
    task, site = tasks["whole"], stack.site
    uid = until_followed(task)
    (pod,) = site.of(task, task.try_number).values()
    assert pod["spec"]["serviceAccountName"] == "airflow-worker"
    assert pod["status"]["phase"] == "Running"
    site.let_end(task)
    task.until("success")
    assert task.xcom()["metrics"] == {"accuracy": 0.5}
    assert task.xcom("outcome")["kind"] == "succeeded"
    until_gone(task, uid)
    assert len(site.of(task, task.try_number)) == 1


def test_deferred_task_has_no_pod_while_job_runs(stack: Stack, tasks: dict[str, Task]) -> None:
    task, site = tasks["deferred-whole"], stack.site
    task.until("deferred")
    uid = until_followed(task)
    eventually(lambda: all(map(is_over, site.of(task).values())))
    before = site.of(task).keys()
    site.let_end(task)
    task.until("success")
    assert task.xcom()["uid"] == uid
    assert task.xcom()["metrics"] == {"accuracy": 0.5}
    assert site.of(task).keys() - before
    until_gone(task, uid)


@pytest.mark.parametrize(("name", "how"), [("evicted", ()), ("lost", ("--grace-period=0", "--force"))])
def test_retry_adopts_job_after_task_pod_is_deleted(
    stack: Stack, tasks: dict[str, Task], name: str, how: tuple[str, ...]
) -> None:
    task, site = tasks[name], stack.site
    uid = until_followed(task)
    before = site.uids(task)
    number = task.try_number  # may be above 1 on a busy machine, where Airflow may lose a pod by itself
    (pod,) = site.of(task, number)
    site.airflow.kubectl("delete", "pod", pod, "--wait=false", *how)
    eventually(lambda: task.try_number > number and "adopted" in task.log())
    assert (task.job(), site.uids(task)) == (uid, before)
    site.let_end(task)
    task.until("success")
    assert task.xcom()["uid"] == uid
    until_gone(task, uid)


@pytest.mark.parametrize("name", ["ended", "deferred-ended"])
def test_task_marked_as_failed_deletes_its_job(stack: Stack, tasks: dict[str, Task], name: str) -> None:
    task = tasks[name]
    uid = until_followed(task)
    task.set_state("failed")
    until_gone(task, uid)
    eventually(lambda: all(map(is_over, stack.site.of(task).values())))


@pytest.mark.parametrize(("name", "state"), [("cleared", "running"), ("deferred-cleared", "deferred")])
def test_cleared_task_adopts_its_job(stack: Stack, tasks: dict[str, Task], name: str, state: str) -> None:
    task, site = tasks[name], stack.site
    task.until(state)
    uid, number = until_followed(task), task.try_number
    before = site.uids(task)
    task.clear()
    eventually(lambda: task.try_number == number + 1 and task.state == state)
    until_followed(task)
    assert (task.job(), site.uids(task)) == (uid, before)
    site.let_end(task)
    task.until("success")
    assert task.xcom()["uid"] == uid
    until_gone(task, uid)


def test_log_names_account_without_role(stack: Stack, tasks: dict[str, Task]) -> None:
    task, site = tasks["forbidden"], stack.site
    task.until("failed")
    (pod,) = site.of(task)
    log = site.airflow.kubectl("logs", pod)
    assert f"system:serviceaccount:{site.airflow.name}:airflow-worker" in log, log
    assert not site.airflow.objects(TFJOBS)


def test_no_jobs_and_pods_are_left(stack: Stack, tasks: dict[str, Task]) -> None:
    eventually(lambda: not stack.site.jobs() and not stack.site.space.pods())
