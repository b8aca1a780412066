"""Volcano's ssh plugin: the Secret and its mount, as in ``pkg/controllers/job/plugins/ssh``."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from tests.core.builders import replicas, template, volcano_job
from tests.core.world import World
from tf_dist.core.model.context import Create, EnsureKeys
from tf_dist.core.model.job import Job, Plugins, ReplicaId, SSHPlugin
from tf_dist.core.podbuilder import replica_pod
from tf_dist.core.podbuilder.volcano_plugins import KeyPair, key_secret, lacks_keys, with_key_pair


def ssh_job(plugin: SSHPlugin | None = None, **hosts: str) -> Job:
    body = template()
    body["spec"] |= {**hosts, "initContainers": [{"name": "first", "image": "busybox"}]}
    return volcano_job(replicas("worker", 2, template=body), plugins=Plugins(svc=True, ssh=plugin or SSHPlugin()))


def texts(job: Job, pair: KeyPair | None = None) -> dict[str, str]:
    secret = key_secret(job)
    assert (secret["apiVersion"], secret["kind"]) == ("v1", "Secret")
    data = (with_key_pair(secret, pair) if pair else secret)["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


HEAD = "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n"


@pytest.mark.parametrize(
    ("job", "hosts"),
    [
        (
            ssh_job(),
            "Host tf-dist-mnist-worker-0\n  HostName tf-dist-mnist-worker-0.tf-dist-mnist\n  Port 22\n"
            "Host tf-dist-mnist-worker-1\n  HostName tf-dist-mnist-worker-1.tf-dist-mnist\n  Port 22\n",
        ),
        (ssh_job(SSHPlugin(port=2022), hostname="one"), "Host one\n  HostName one.tf-dist-mnist\n  Port 2022\n"),
        (ssh_job(hostname="one", subdomain="there"), "Host one\n  HostName one.there\n  Port 22\n"),
    ],
)
def test_ssh_config_names_every_host(job: Job, hosts: str) -> None:
    assert texts(job) == {"config": HEAD + hosts}


def test_ssh_config_names_workers_up_to_maximum() -> None:
    (spec,) = ssh_job().replica_specs
    job = volcano_job(replace(spec, max_replicas=3), plugins=Plugins(ssh=SSHPlugin()))
    assert texts(job)["config"].count("HostName") == 3


def test_public_key_is_an_authorized_key() -> None:
    found = texts(ssh_job(), KeyPair("private", "public\n"))
    assert {key: found[key] for key in ("id_rsa", "id_rsa.pub", "authorized_keys")} == {
        "id_rsa": "private",
        "id_rsa.pub": "public\n",
        "authorized_keys": "public\n",
    }


def test_job_may_bring_its_own_keys() -> None:
    job = ssh_job(SSHPlugin(private_key="mine", public_key="yours"))
    assert not lacks_keys(key_secret(job))
    assert (texts(job)["id_rsa"], texts(job)["authorized_keys"]) == ("mine", "yours")


def test_repr_does_not_show_private_key() -> None:
    assert "mine" not in repr(SSHPlugin(private_key="mine")) + repr(KeyPair("mine", ""))


@pytest.mark.parametrize(("path", "mode"), [("/root/.ssh", 0o600), ("/home/me/.ssh", 0o644)])
def test_every_container_mounts_ssh_folder(path: str, mode: int) -> None:
    spec = replica_pod.build_pod(ssh_job(SSHPlugin(path=path)), ReplicaId("worker", 1), "1.0.0")["spec"]
    (volume,) = (one for one in spec["volumes"] if one["name"] == "tf-dist-mnist-ssh")
    files = ("id_rsa", "id_rsa.pub", "authorized_keys", "config")
    assert volume["secret"] == {
        "secretName": "tf-dist-mnist-ssh",
        "items": [{"key": name, "path": f".ssh/{name}"} for name in files],
        "defaultMode": mode,
    }
    mount = {"name": "tf-dist-mnist-ssh", "mountPath": path, "subPath": ".ssh"}
    assert all(mount in container["volumeMounts"] for container in (*spec["containers"], *spec["initContainers"]))


def test_keys_are_created_before_pods() -> None:
    world = World(ssh_job())
    plan = world.look()
    kinds = [action.body["kind"] for action in plan.actions if isinstance(action, Create | EnsureKeys)]
    assert kinds == ["ConfigMap", "NetworkPolicy", "Service", "Secret", "Pod", "Pod"]
    world = World(volcano_job())
    assert not any(isinstance(action, EnsureKeys) for action in world.look().actions)
