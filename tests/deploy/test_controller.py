"""The command of the shipped Deployment with its service account, on a real API server."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from tests.cli.ready import tf_dist
from tests.cluster.support import exists
from tests.controller.harness import tfjob
from tests.deploy.conftest import SYSTEM
from tests.deploy.kubelet import Kubelet
from tests.deploy.manifests import container, documents, rendered, shipped
from tests.waiting import until
from tf_dist.cluster.api import LEASES, PODS, TFJOBS
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.cluster.lease import leader_lease, new_lease

PROGRAM = [sys.executable, "-m", "tf_dist.cli.main"]


def test_command_accepts_all_arguments_of_deployment() -> None:
    """With ``--help``, the command parses its arguments without starting."""
    arguments = container(
        rendered("namespaces={a,b}", "volcanoJobs=true", "defaultScheduler=kueue", "disruptionBudgets=true")
    )["args"]
    told = tf_dist(*arguments, "--help")
    assert told.returncode == 0, told.stderr
    flags = {one.partition("=")[0] for one in arguments if one.startswith("--")}
    assert flags <= set(re.findall(r"--[\w-]+", told.stdout))


def answers(log: Path, path: str) -> int:
    """The status code of a response at the port in the log, or 0."""
    port = re.search(r"started manager .*port=(\d+)", log.read_text())
    if port is None:
        return 0
    with suppress(OSError):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}{path}", timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
    return 0


@pytest.mark.cluster
@pytest.mark.parametrize("namespaced", [False, True], ids=["whole cluster", "one namespace"])
def test_controller_role_suffices_for_shipped_command(
    admin: RestCluster,
    kubectl: Callable[..., str],
    install: Callable[..., subprocess.CompletedProcess[str]],
    config_of: Callable[[str, str], str],
    room: Kubelet,
    namespace: str,
    tmp_path: Path,
    namespaced: bool,
) -> None:
    home = namespace if namespaced else SYSTEM
    objects = documents(install("--namespaced", "--namespace", namespace).stdout) if namespaced else shipped()
    if namespaced:  # without the Deployment, whose pods this test runs
        kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(one for one in objects if one["kind"] != "Deployment"))
    else:
        # A Lease of a tenant can delay the controller only once, for the duration of a Lease.
        held = new_lease(leader_lease(TFJOBS, namespace), "a-tenant", 86_400, time.time())
        admin.create(LEASES, namespace, held)
    manager = container(objects)
    given = ["--metrics-port=0" if one.startswith("--metrics-port") else one for one in manager["args"]]
    config = config_of("tf-dist-controller", home)
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([*PROGRAM, *given, f"--kubeconfig={config}"], stdout=log, stderr=log)
        try:
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                until(lambda probe=probe: answers(tmp_path / "log", manager[probe]["httpGet"]["path"]) == 200, 60)
            job = tfjob(cleanPodPolicy="All", ttlSecondsAfterFinished=0)
            admin.create(TFJOBS, namespace, {**job, "metadata": {"name": "mnist"}})
            until(lambda: len(admin.list(PODS, namespace).items) == 3, 60)
            ends = {"worker-0": 0, "worker-1": 0}

            def gone() -> bool:
                room.step(ends)
                return not exists(admin, TFJOBS, namespace, "mnist")

            until(gone, 60)
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(timeout=60)
    # Namespaces of earlier tests may still be terminating, and the controller reconciles their jobs until then.
    lines = (tmp_path / "log").read_text().splitlines()
    said = "\n".join(line for line in lines if "because it is being terminated" not in line)
    assert code == 0, said
    # A controller of a namespace logs once which resources of the cluster it cannot list.
    assert said.count("cannot list") == len(set(re.findall(r"cannot list resource \\\"(\w+)", said))), said
    assert namespaced or "cannot" not in said, said
    if namespaced:
        assert not exists(admin, LEASES, *leader_lease(TFJOBS, namespace))
    else:
        assert not admin.get(LEASES, *leader_lease(TFJOBS, None))["spec"].get("holderIdentity")
