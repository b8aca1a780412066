"""The commands with a kubeconfig of a cluster. The cluster is another user's local cluster with a node."""

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
from tests.leaderless import LeaderlessCluster, controller
from tf_dist.cluster.api import CONFIG_MAPS, LEASES, NAMESPACES, PODS, TFJOBS
from tf_dist.cluster.client import client_config
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.cluster.client.transport import READ_TIMEOUT
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode
from tf_dist.core.model import names
from tf_dist.errors import NotFound
from tf_dist.local.embedded import EmbeddedSettings, write_private_json

FOREVER = "trap 'exit 143' TERM; echo up; while :; do sleep 0.05; done"


@dataclass
class Elsewhere:
    """A program without its own local cluster, and a kubeconfig of another user."""

    program: Program
    kubeconfig: str
    cluster: RestCluster

    def __call__(self, *arguments: str, **env: str) -> Any:
        return self.program(*arguments, "--kubeconfig", self.kubeconfig, **env)

    def job(self, script: str, **fields: Any) -> str:
        """Write a file with a job of a new name, and return the name."""
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
        """The Leases with which programs lead a namespace."""
        found = self.cluster.list(LEASES, labels=names.LEADER).items
        refs = [f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in found]
        return [ref for ref in refs if not ref.startswith(f"{names.SYSTEM_NAMESPACE}/")]

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


@pytest.fixture(scope="module")
def leaderless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """A cluster without a controller, so that ``run`` leads."""
    folder, scratch = tmp_path_factory.mktemp("leaderless"), tempfile.mkdtemp(prefix="td-")
    program, path = Program(folder, surroundings(folder, scratch) | {"PYTHONUNBUFFERED": "1"}), folder / "config"
    node = tempfile.mkdtemp(prefix="td-")  # separate, because the node's processes are not the program's
    settings = EmbeddedSettings(state_dir=Path(node), network=NetworkMode.SHARED)
    with LeaderlessCluster(settings) as embedded:
        write_private_json(embedded.kubeconfig(), path)
        with client_config.load_config(str(path)).cluster() as cluster:
            cluster.create(NAMESPACES, None, {"metadata": {"name": "research"}})
            yield Elsewhere(program, str(path), cluster)
    for used in (scratch, node):
        shutil.rmtree(used, ignore_errors=True)


def test_submit_and_explain_warn_about_dns_cache(elsewhere: Elsewhere) -> None:
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


def test_uses_kubeconfig_variable_and_namespace_of_context(elsewhere: Elsewhere) -> None:
    job = elsewhere.job("true")
    program, env = elsewhere.program, {"KUBECONFIG": elsewhere.kubeconfig}
    assert program("submit", f"{job}.yaml", "--context", "research", **env).returncode == 0
    assert elsewhere.stored(job, "research") is not None
    assert program("get", job, "-n", "research", "-o", "name", **env).stdout == f"tfjob/{job}\n"
    missing = program("get", job, **env)
    assert missing.returncode == 2
    assert "add -n research" in missing.stderr
    assert program("delete", job, "--context", "research", **env).returncode == 0


def test_rejects_different_namespaces_in_file_and_option(elsewhere: Elsewhere) -> None:
    document = elsewhere.program.job(name="job")
    document["metadata"]["namespace"] = "research"
    elsewhere.program.write("job.yaml", document)
    for command in ("submit", "run"):
        found = elsewhere(command, "job.yaml", "-n", "default")
        assert found.returncode == 2
        assert "metadata.namespace: the file says research, --namespace says default" in found.stderr


def test_local_cluster_precedes_kubeconfig_variable(local: Program, elsewhere: Elsewhere) -> None:
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


def test_changing_commands_print_cluster_on_terminal(elsewhere: Elsewhere) -> None:
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


@pytest.fixture(params=["leaderless", "elsewhere"], ids=["nobody leads", "a controller leads"])
def either(request: pytest.FixtureRequest) -> Elsewhere:
    """``run`` leads its namespace if it has no other leader. Users see no difference."""
    found: Elsewhere = request.getfixturevalue(request.param)
    return found


def test_run_deletes_job_at_end(either: Elsewhere) -> None:
    job = either.job("echo step=1 accuracy=0.9; pwd")
    process = either.program.start("run", f"{job}.yaml", "--kubeconfig", either.kubeconfig)
    text = rest(process)
    assert process.returncode == 0, text
    assert f"worker-0 | {either.program.folder}\n" in text
    assert f"{job}: Succeeded" in text
    assert "accuracy:    0.9000" in text
    assert either.stored(job) is None
    assert (either.pods(job), either.leases()) == ([], [])


def test_run_with_keep_keeps_job(leaderless: Elsewhere) -> None:
    elsewhere = leaderless
    job = elsewhere.job("echo kept")
    found = elsewhere("run", f"{job}.yaml", "--keep", "-n", "research")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "namespace research" in found.stdout
    stored = elsewhere.stored(job, "research")
    assert stored is not None
    assert stored["status"]["tfDist"]["phase"] == "Completed"
    assert elsewhere("logs", job, "-n", "research").stdout == "worker-0 | kept\n"
    assert elsewhere.leases() == []
    assert elsewhere("delete", job, "-n", "research", "--wait", "--timeout", "180s").returncode == 0


@pytest.mark.parametrize("keep", [False, True])
def test_interrupted_run_deletes_job_unless_kept(either: Elsewhere, keep: bool) -> None:
    job = either.job(FOREVER)
    options = ["--kubeconfig", either.kubeconfig, *(["--keep"] if keep else [])]
    process = either.program.start("run", f"{job}.yaml", *options)
    until(process, "worker-0 | up")
    process.send_signal(signal.SIGINT)
    text = rest(process)
    assert process.returncode == 130, text
    assert either.leases() == []
    if keep:
        assert "the job continues" in text
        assert either.stored(job) is not None
        assert either("delete", job, "--wait", "--timeout", "180s").returncode == 0
    assert eventually(lambda: either.stored(job) is None and not either.pods(job))
    assert eventually(lambda: not either.program.processes())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ends", "is killed"])
def test_second_run_leads_when_first_ends(leaderless: Elsewhere, number: signal.Signals) -> None:
    flag = leaderless.program.folder / f"flag-{number.name}"
    first, second = leaderless.job(FOREVER), leaderless.job(f"echo up; until test -e {flag}; do sleep 0.05; done")
    with_config = ("--kubeconfig", leaderless.kubeconfig)
    leading = leaderless.program.start("run", f"{first}.yaml", *with_config)
    until(leading, "worker-0 | up")
    following = leaderless.program.start("run", f"{second}.yaml", *with_config)
    until(following, "worker-0 | up")  # the first run started the job
    (lease,) = leaderless.cluster.list(LEASES, "default").items
    pods = leaderless.pods(second)
    assert lease["spec"]["holderIdentity"] in leaderless("explain", second).stdout
    leading.send_signal(number)
    rest(leading)
    flag.touch()
    text = rest(following)
    assert following.returncode == 0, text
    assert f"{second}: Succeeded" in text
    assert len(pods) == 1
    assert leaderless.leases() == []
    if number is signal.SIGKILL:
        assert leaderless.stored(first) is not None, "what was killed took nothing away"
        assert leaderless("delete", first).returncode == 0
    assert eventually(lambda: leaderless.stored(first) is None and not leaderless.pods(first))


def test_run_with_controller_driver_waits_for_leader(leaderless: Elsewhere) -> None:
    job = leaderless.job("echo here")
    process = leaderless.program.start(
        "run", f"{job}.yaml", "--driver=controller", "--kubeconfig", leaderless.kubeconfig
    )
    said = until(process, "no controller leads the job's namespace or the cluster")
    assert "tf-dist install" in said
    assert leaderless.pods(job) == []
    with controller(leaderless.cluster):
        text = rest(process)
    assert process.returncode == 0, text
    assert "worker-0 | here" in text


def test_commands_report_leader_or_its_absence(leaderless: Elsewhere) -> None:
    job = leaderless.job(FOREVER)
    found = leaderless("submit", f"{job}.yaml")
    assert (found.returncode, found.stdout) == (0, f"tfjob/{job} submitted\n")
    assert "warning: no controller leads the job's namespace or the cluster" in found.stderr
    for command in (("get",), ("explain", job), ("describe", job)):
        found = leaderless(*command)
        assert "no controller leads" in found.stdout + found.stderr, command
    with controller(leaderless.cluster) as leadership:
        assert eventually(lambda: leadership.kinds())
        led = f"{leadership.identity} leads the cluster (Lease tf-dist-system/tf-dist-controller)"
        assert led in leaderless("get", "-o", "wide").stderr
        assert led in leaderless("explain", job).stdout
        assert led in leaderless("describe", job).stdout
        leader = json.loads(leaderless("explain", job, "-o", "json").stdout)["leader"]
        assert leader == {"holder": leadership.identity, "lease": "tf-dist-system/tf-dist-controller"}
        _, text = on_terminal(
            leaderless.program,
            "submit",
            f"{job}.yaml",
            "--set",
            f"metadata.name={job}-b",
            "--kubeconfig",
            leaderless.kubeconfig,
        )
        assert led in text
        for name in (job, f"{job}-b"):
            assert leaderless("delete", name, "--wait", "--timeout", "180s").returncode == 0


def test_signal_ends_run_when_cluster_does_not_answer(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """The run ends before the read timeout of a single request."""
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
    assert elsewhere("delete", job, "--wait", "--timeout", "180s").returncode == 0


def test_run_on_local_cluster_uses_its_controller(local: Program, elsewhere: Elsewhere) -> None:
    job = elsewhere.job("echo here")
    found = local("run", str(elsewhere.program.folder / f"{job}.yaml"), "--local")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "worker-0 | here" in found.stdout
    assert elsewhere.stored(job) is None


def test_replicas_connect_without_dns(tf_dist: Program) -> None:
    """Like on a Mac, the pods share one network, and the controller runs in another process than the cluster."""
    settings = EmbeddedSettings(state_dir=Path(tf_dist.env["TMPDIR"], "node"), network=NetworkMode.SHARED)
    with LeaderlessCluster(settings) as cluster:
        write_private_json(cluster.kubeconfig(), tf_dist.folder / "config")
        job = tf_dist.job('echo "$TF_CONFIG"', workers=2)
        # Otherwise the end of the first worker would end the other before it writes its log.
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


def test_existing_name_is_rejected(elsewhere: Elsewhere) -> None:
    job = elsewhere.job(FOREVER)
    assert elsewhere("submit", f"{job}.yaml").returncode == 0
    for command in ("submit", "run"):
        found = elsewhere(command, f"{job}.yaml")
        assert found.returncode == 2
        assert f"there is a job {job} in namespace default already" in found.stderr
    assert elsewhere.stored(job) is not None
    assert elsewhere.leases() == []
    assert elsewhere("delete", job, "--wait", "--timeout", "180s").returncode == 0


def test_rejects_local_options_with_kubeconfig(elsewhere: Elsewhere) -> None:
    job = elsewhere.job("true")
    found = elsewhere("run", f"{job}.yaml", "--network", "shared", "--workdir", "/")
    assert found.returncode == 2
    assert "--network: this is for runs on this machine only" in found.stderr
    assert "--workdir: this is for runs on this machine only" in found.stderr
    found = elsewhere("run", f"{job}.yaml", "--embedded")
    assert found.returncode == 2
    assert "--embedded: --kubeconfig names a cluster" in found.stderr


def test_run_ignores_kubeconfig_variable(elsewhere: Elsewhere) -> None:
    job = elsewhere.job("echo near")
    nowhere = kubeconfig(elsewhere.program.folder / "nowhere", "http://127.0.0.1:9")
    found = elsewhere.program("run", f"{job}.yaml", KUBECONFIG=nowhere)
    assert found.returncode == 0, found.stderr
    assert "worker-0 | near" in found.stdout


# Clusters without some kinds or rights


@pytest.mark.parametrize("command", [["get"], ["get", "x"], ["submit", "job.yaml"], ["run", "job.yaml"]])
def test_missing_kind_suggests_install(tf_dist: Program, command: list[str]) -> None:
    tf_dist.write("job.yaml", tf_dist.job())
    with refusing({"leases": (201, STORED)}) as url:
        found = tf_dist(*command, "--kubeconfig", kubeconfig(tf_dist.folder / "config", url))
    assert found.returncode == 2
    assert "the TFJob kind (tfjobs.kubeflow.org) is not installed there" in found.stderr
    assert "tf-dist install | kubectl apply -f -" in found.stderr
    assert "Traceback" not in found.stderr


def test_get_skips_forbidden_kind_unless_all_are_forbidden(tf_dist: Program) -> None:
    jobs = {"kind": "TFJobList", "metadata": {"resourceVersion": "1"}, "items": []}
    with refusing({"tfjobs": (200, jobs), "jobs": forbidden("jobs")}) as url:
        found = tf_dist("get", "--kubeconfig", kubeconfig(tf_dist.folder / "config", url))
        assert (found.returncode, found.stderr) == (0, "no jobs in namespace default\n")
    with refusing({"tfjobs": forbidden("tfjobs"), "jobs": forbidden("jobs")}) as url:
        found = tf_dist("get", "--kubeconfig", kubeconfig(tf_dist.folder / "config", url), "-n", "research")
    assert found.returncode == 2
    assert "list tfjobs.kubeflow.org in namespace research" in found.stderr
    assert "--verb=list --resource=tfjobs.kubeflow.org -n research" in found.stderr


def test_run_rejects_volcano_job_if_volcano_is_installed(tf_dist: Program) -> None:
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
    assert "Job vc is for Volcano's controller" in found.stderr
    assert "tf-dist submit" in found.stderr
