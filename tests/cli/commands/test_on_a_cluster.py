"""The commands on a cluster that a kubeconfig names: here, another user's local one, with an API server and a node."""

from __future__ import annotations

import json
import re
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.cli.conftest import Program, eventually, surroundings
from tests.cli.processes import on_terminal, rest, until
from tests.cli.refusing import STORED, forbidden, refusing
from tests.cluster.client.secure import kubeconfig
from tests.faults.proxy import Fault, Kind, Proxy
from tf_dist.cluster.api import CONFIG_MAPS, LEASES, NAMESPACES, PODS, TFJOBS
from tf_dist.cluster.client import client_config
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.cluster.client.transport import READ_TIMEOUT
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode
from tf_dist.controller.leases.lease import DRIVER_INLINE
from tf_dist.core.api import names
from tf_dist.errors import NotFound
from tf_dist.local.embedded import EmbeddedCluster, EmbeddedSettings, write_private_json

FOREVER = "trap 'exit 143' TERM; echo up; while :; do sleep 0.05; done"


@dataclass
class Elsewhere:
    """A program whose user has no cluster of their own, and a kubeconfig of another user."""

    program: Program
    kubeconfig: str
    cluster: RestCluster

    def __call__(self, *arguments: str, **env: str) -> Any:
        return self.program(*arguments, "--kubeconfig", self.kubeconfig, **env)

    def job(self, script: str, **fields: Any) -> str:
        """A file with a job of a fresh name; its name."""
        document = self.program.job(script, name=f"job-{uuid.uuid4().hex[:6]}", **fields)
        document["spec"]["runPolicy"]["cleanPodPolicy"] = "None"
        name = str(document["metadata"]["name"])
        self.program.write(f"{name}.yaml", document)
        return name

    def stored(self, name: str, namespace: str = "default") -> dict[str, Any] | None:
        try:
            return self.cluster.get(TFJOBS, namespace, name)
        except NotFound:
            return None

    def leases(self) -> list[str]:
        """Those of drivers that live in a process of their own."""
        found = self.cluster.list(LEASES).items
        inline = [one for one in found if (one["metadata"].get("labels") or {}).get(names.DRIVER) == DRIVER_INLINE]
        return [one["metadata"]["name"] for one in inline]

    def pods(self, name: str) -> list[str]:
        found = self.cluster.list(PODS, labels=f"{names.JOB_NAME}={name}").items
        return [pod["metadata"]["name"] for pod in found]


@pytest.fixture(scope="module")
def elsewhere(local: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    folder, scratch = tmp_path_factory.mktemp("elsewhere"), tempfile.mkdtemp(prefix="td-")
    program = Program(folder, surroundings(folder, scratch) | {"PYTHONUNBUFFERED": "1"})
    document = yaml.safe_load(Path(local.env["TF_DIST_HOME"], "kubeconfig").read_text())
    document["contexts"].append(
        {"name": "research", "context": {**document["contexts"][0]["context"], "namespace": "research"}}
    )
    path = folder / "config"
    path.write_text(yaml.safe_dump(document))
    with client_config.load_config(str(path)).cluster() as cluster:
        cluster.create(NAMESPACES, None, {"metadata": {"name": "research"}})
        yield Elsewhere(program, str(path), cluster)
    shutil.rmtree(scratch, ignore_errors=True)


def test_a_job_from_submit_to_delete(elsewhere: Elsewhere) -> None:
    job = elsewhere.job(f"pwd; {FOREVER}")
    found = elsewhere("submit", f"{job}.yaml")
    assert (found.returncode, found.stdout, found.stderr) == (0, f"tfjob/{job} submitted\n", "")
    assert elsewhere("wait", job, "--for", "running", "--timeout", "180s").returncode == 0
    assert elsewhere("get", job, "-o", "name").stdout == f"tfjob/{job}\n"
    assert "worker-0" in elsewhere("describe", job).stdout
    assert elsewhere("explain", job).stdout.startswith(f"tfjob/{job} is Running")
    assert eventually(lambda: f"worker-0 | {elsewhere.program.folder}\n" in elsewhere("logs", job).stdout)
    assert elsewhere("suspend", job).stdout == f"tfjob/{job} suspended\n"
    assert elsewhere("wait", job, "--for", "suspended", "--timeout", "180s").returncode == 0
    assert elsewhere("resume", job).stdout == f"tfjob/{job} resumed\n"
    assert elsewhere("delete", job, "--wait", "--timeout", "180s").stdout == f"tfjob/{job} deleted\n"
    assert elsewhere.stored(job) is None


def test_submit_and_explain_name_a_dns_cache_that_delays_the_start(elsewhere: Elsewhere) -> None:
    corefile = ".:53 {\n kubernetes cluster.local {\n ttl 30\n }\n cache 30\n}\n"
    elsewhere.cluster.create(
        CONFIG_MAPS, "kube-system", {"metadata": {"name": "coredns"}, "data": {"Corefile": corefile}}
    )
    document = elsewhere.program.job(FOREVER, workers=2, name="late-names")
    document["metadata"]["annotations"] = {names.SERVICES: "per-job"}
    elsewhere.program.write("late-names.yaml", document)
    found = elsewhere("submit", "late-names.yaml")
    assert found.stderr.startswith("warning: the cluster's DNS caches for 30 s that a name does not exist")
    assert "docs/troubleshooting.md" in found.stderr
    assert "caches for 30 s" in elsewhere("explain", "late-names").stdout
    elsewhere.cluster.delete(CONFIG_MAPS, "kube-system", "coredns")
    assert "caches for 30 s" not in elsewhere("explain", "late-names").stdout
    assert elsewhere("delete", "late-names", "--wait", "--timeout", "180s").returncode == 0


def test_the_environment_names_the_cluster_and_the_context_the_namespace(elsewhere: Elsewhere) -> None:
    job = elsewhere.job("true")
    program, env = elsewhere.program, {"KUBECONFIG": elsewhere.kubeconfig}
    assert program("submit", f"{job}.yaml", "--context", "research", **env).returncode == 0
    assert elsewhere.stored(job, "research") is not None
    assert program("get", job, "-n", "research", "-o", "name", **env).stdout == f"tfjob/{job}\n"
    missing = program("get", job, **env)
    assert missing.returncode == 2
    assert "add -n research" in missing.stderr
    assert program("delete", job, "--context", "research", **env).returncode == 0


def test_the_file_and_the_command_line_may_not_disagree(elsewhere: Elsewhere) -> None:
    document = elsewhere.program.job(name="job")
    document["metadata"]["namespace"] = "research"
    elsewhere.program.write("job.yaml", document)
    for command in ("submit", "run"):
        found = elsewhere(command, "job.yaml", "-n", "default")
        assert found.returncode == 2
        assert "metadata.namespace: the file says research, --namespace says default" in found.stderr


def test_a_namespace_that_is_not_there(elsewhere: Elsewhere) -> None:
    job = elsewhere.job("true")
    for command in ("submit", "run"):
        found = elsewhere(command, f"{job}.yaml", "-n", "nowhere")
        assert found.returncode == 2
        assert "kubectl create namespace nowhere" in found.stderr


def test_contexts_and_files_that_are_not_there(elsewhere: Elsewhere) -> None:
    found = elsewhere("get", "--context", "reserch")
    assert found.returncode == 2
    assert "did you mean research?" in found.stderr
    found = elsewhere.program("get", "--kubeconfig", "missing")
    assert found.returncode == 2
    assert "there is no kubeconfig missing" in found.stderr


def test_the_local_cluster_comes_first_unless_another_is_named(local: Program, elsewhere: Elsewhere) -> None:
    nowhere = kubeconfig(local.folder / "nowhere", "http://127.0.0.1:9")
    assert local("get", KUBECONFIG=nowhere).returncode == 0
    assert local("get", "--local", KUBECONFIG=nowhere).returncode == 0
    named = local("get", "--kubeconfig", nowhere)
    assert named.returncode == 75
    assert "no answer from http://127.0.0.1:9" in named.stderr
    both = local("get", "--local", "--kubeconfig", nowhere)
    assert both.returncode == 2
    assert "leave one of them out" in both.stderr
    none = elsewhere.program("get", "--local")
    assert none.returncode == 75
    assert "tf-dist local up" in none.stderr


def test_a_terminal_is_told_where_something_changes(elsewhere: Elsewhere) -> None:
    job = elsewhere.job("true")
    where = ("--kubeconfig", elsewhere.kubeconfig, "--context", "research")
    code, text = on_terminal(elsewhere.program, "submit", f"{job}.yaml", *where)
    assert code == 0
    assert "cluster: context research, namespace research" in text
    _, text = on_terminal(elsewhere.program, "get", *where)
    assert "cluster:" not in text
    _, text = on_terminal(elsewhere.program, "delete", job, *where)
    assert "cluster: context research, namespace research" in text


# Runs


def test_a_run_drives_its_job_from_here_and_takes_it_away(elsewhere: Elsewhere) -> None:
    job = elsewhere.job("echo step=1 accuracy=0.9; pwd")
    process = elsewhere.program.start("run", f"{job}.yaml", "--kubeconfig", elsewhere.kubeconfig)
    text = rest(process)
    assert process.returncode == 0, text
    assert f"worker-0 | {elsewhere.program.folder}\n" in text
    assert f"{job}: Succeeded" in text
    assert "accuracy:    0.9000" in text
    assert elsewhere.stored(job) is None
    assert (elsewhere.pods(job), elsewhere.leases()) == ([], [])


def test_a_run_that_fails(elsewhere: Elsewhere) -> None:
    job = elsewhere.job("echo out of luck; exit 3")
    found = elsewhere("run", f"{job}.yaml", "-o", "json")
    assert found.returncode == 1
    report = json.loads(found.stdout)
    assert (report["state"], report["exitCode"], report["kept"]) == ("Failed", 1, None)
    assert "worker-0 | out of luck" in found.stderr
    assert (elsewhere.stored(job), elsewhere.leases()) == (None, [])


def test_a_job_that_is_kept_stays(elsewhere: Elsewhere) -> None:
    job = elsewhere.job("echo kept")
    found = elsewhere("run", f"{job}.yaml", "--keep", "--context", "research")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "kept in:     context research, namespace research" in found.stdout
    stored = elsewhere.stored(job, "research")
    assert stored is not None
    assert stored["status"]["tfDist"]["phase"] == "Completed"
    driver = stored["metadata"]["annotations"][names.DRIVER]
    assert re.fullmatch(r"research/tf-dist-\w+", driver)
    assert elsewhere("logs", job, "-n", "research").stdout == "worker-0 | kept\n"
    assert elsewhere.leases() == []
    assert elsewhere("delete", job, "-n", "research", "--wait", "--timeout", "180s").returncode == 0


@pytest.mark.parametrize("keep", [False, True])
def test_ctrl_c_takes_the_job_away_unless_it_is_kept(elsewhere: Elsewhere, keep: bool) -> None:
    job = elsewhere.job(FOREVER)
    options = ["--kubeconfig", elsewhere.kubeconfig, *(["--keep"] if keep else [])]
    process = elsewhere.program.start("run", f"{job}.yaml", *options)
    until(process, "worker-0 | up")
    assert len(elsewhere.leases()) == 1
    process.send_signal(signal.SIGINT)
    text = rest(process)
    assert process.returncode == 130, text
    assert elsewhere.leases() == []
    if keep:
        assert "the job stays where it is" in text
        assert elsewhere.stored(job) is not None
        assert elsewhere("delete", job, "--wait", "--timeout", "180s").returncode == 0
    assert eventually(lambda: elsewhere.stored(job) is None and not elsewhere.pods(job))
    assert eventually(lambda: not elsewhere.program.processes())


def test_a_signal_ends_a_run_although_the_cluster_does_not_answer(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """Sooner than a single request would have been given up: the sender of the signal will not wait for long."""
    job = elsewhere.job(FOREVER)
    document = yaml.safe_load(Path(elsewhere.kubeconfig).read_text())
    place = document["clusters"][0]["cluster"]
    server = urlsplit(place["server"])
    with Proxy((str(server.hostname), int(server.port or 0))) as proxy:
        place["server"] = place["server"].replace(f"{server.hostname}:{server.port}", proxy.url.removeprefix("http://"))
        file = tmp_path / "kubeconfig"
        file.write_text(yaml.safe_dump(document))
        process = elsewhere.program.start("run", f"{job}.yaml", "--kubeconfig", str(file))
        until(process, "worker-0 | up")
        proxy.inject(Fault(Kind.HANG, times=None, seconds=3600))
        proxy.disconnect()
        eventually(lambda: sum(one.fault is Kind.HANG for one in proxy.passed) > 4)
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        text = rest(process)
        assert time.monotonic() - asked < READ_TIMEOUT, text
    assert process.returncode != 0
    assert "Traceback" not in text
    assert "may still be in" in text, "it says what may be left"
    for lease in elsewhere.leases():
        elsewhere.cluster.delete(LEASES, "default", lease)
    assert elsewhere("delete", job, "--wait", "--timeout", "180s").returncode == 0


def test_on_the_local_cluster_its_own_driver_drives(local: Program, elsewhere: Elsewhere) -> None:
    job = elsewhere.job("echo here")
    found = local("run", str(elsewhere.program.folder / f"{job}.yaml"), "--local")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "worker-0 | here" in found.stdout
    assert elsewhere.stored(job) is None


def test_where_there_is_no_dns_replicas_find_each_other_all_the_same(tf_dist: Program) -> None:
    """As on a Mac: the pods share one network, and who drives the job is another process than the cluster."""
    settings = EmbeddedSettings(state_dir=Path(tf_dist.env["TMPDIR"], "node"), network=NetworkMode.SHARED)
    with EmbeddedCluster(settings) as cluster:
        write_private_json(cluster.kubeconfig(), tf_dist.folder / "config")
        job = tf_dist.job('echo "$TF_CONFIG"', workers=2)
        # Else the end of the first ends the other, which may not have spoken, and what is deleted has no log.
        job["spec"] |= {"successPolicy": "AllWorkers", "runPolicy": {"cleanPodPolicy": "None"}}
        tf_dist.write("job.yaml", job)
        found = tf_dist("run", "job.yaml", "--kubeconfig", "config")
    assert found.returncode == 0, found.stderr
    told = [json.loads(line) for line in re.findall(r"worker-. \| (.*)", found.stdout) if line.startswith("{")]
    assert len(told) == 2
    for config in told:
        workers = config["cluster"]["worker"]
        assert len(set(workers)) == 2
        assert all(worker.startswith("127.0.0.1:") for worker in workers)


def test_a_name_that_is_taken(elsewhere: Elsewhere) -> None:
    job = elsewhere.job(FOREVER)
    assert elsewhere("submit", f"{job}.yaml").returncode == 0
    for command in ("submit", "run"):
        found = elsewhere(command, f"{job}.yaml")
        assert found.returncode == 2
        assert f"there is a job {job} in namespace default already" in found.stderr
    assert elsewhere.stored(job) is not None
    assert elsewhere.leases() == []
    assert elsewhere("delete", job, "--wait", "--timeout", "180s").returncode == 0


def test_options_of_this_machine_mean_nothing_there(elsewhere: Elsewhere) -> None:
    job = elsewhere.job("true")
    found = elsewhere("run", f"{job}.yaml", "--network", "shared", "--workdir", "/")
    assert found.returncode == 2
    assert "--network: this is for runs on this machine only" in found.stderr
    assert "--workdir: this is for runs on this machine only" in found.stderr
    found = elsewhere("run", f"{job}.yaml", "--embedded")
    assert found.returncode == 2
    assert "--embedded: --kubeconfig names a cluster" in found.stderr


def test_a_run_stays_on_this_machine_though_a_kubeconfig_is_there(elsewhere: Elsewhere) -> None:
    job = elsewhere.job("echo near")
    nowhere = kubeconfig(elsewhere.program.folder / "nowhere", "http://127.0.0.1:9")
    found = elsewhere.program("run", f"{job}.yaml", KUBECONFIG=nowhere)
    assert found.returncode == 0, found.stderr
    assert "worker-0 | near" in found.stdout


# Clusters that lack something


@pytest.mark.parametrize("command", [["get"], ["get", "x"], ["submit", "job.yaml"], ["run", "job.yaml"]])
def test_a_cluster_without_the_kind_says_how_to_install_it(tf_dist: Program, command: list[str]) -> None:
    tf_dist.write("job.yaml", tf_dist.job())
    with refusing({"leases": (201, STORED)}) as url:
        found = tf_dist(*command, "--kubeconfig", kubeconfig(tf_dist.folder / "config", url))
    assert found.returncode == 2
    assert "the TFJob kind (tfjobs.kubeflow.org) is not installed there" in found.stderr
    assert "tf-dist install | kubectl apply -f -" in found.stderr
    assert "Traceback" not in found.stderr


def test_one_kind_that_is_not_ours_to_see_hides_no_other(tf_dist: Program) -> None:
    jobs = {"kind": "TFJobList", "metadata": {"resourceVersion": "1"}, "items": []}
    with refusing({"tfjobs": (200, jobs), "jobs": forbidden("jobs")}) as url:
        found = tf_dist("get", "--kubeconfig", kubeconfig(tf_dist.folder / "config", url))
        assert (found.returncode, found.stderr) == (0, "no jobs in namespace default\n")
    with refusing({"tfjobs": forbidden("tfjobs"), "jobs": forbidden("jobs")}) as url:
        found = tf_dist("get", "--kubeconfig", kubeconfig(tf_dist.folder / "config", url), "-n", "research")
    assert found.returncode == 2
    assert "list tfjobs.kubeflow.org in namespace research" in found.stderr
    assert "--verb=list --resource=tfjobs.kubeflow.org -n research" in found.stderr


def test_a_run_without_the_right_to_a_lease_says_so(tf_dist: Program) -> None:
    tf_dist.write("job.yaml", tf_dist.job())
    with refusing({"leases": forbidden("leases.coordination.k8s.io")}) as url:
        found = tf_dist("run", "job.yaml", "--kubeconfig", kubeconfig(tf_dist.folder / "config", url))
    assert found.returncode == 2
    assert "--resource=leases.coordination.k8s.io -n default" in found.stderr


def test_a_volcano_job_is_left_to_volcano(tf_dist: Program) -> None:
    task = {"name": "worker", "replicas": 1, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}
    metadata = {"name": "vc", "namespace": "default"}
    document = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"tasks": [task]},
    }
    tf_dist.write("job.yaml", document)
    definition = {"kind": "CustomResourceDefinition", "metadata": {"name": "jobs.batch.volcano.sh"}, "spec": {}}
    with refusing({"customresourcedefinitions": (200, definition)}) as url:
        found = tf_dist("run", "job.yaml", "--kubeconfig", kubeconfig(tf_dist.folder / "config", url))
    assert found.returncode == 2
    assert "Job vc is Volcano's to drive" in found.stderr
    assert "tf-dist submit" in found.stderr
