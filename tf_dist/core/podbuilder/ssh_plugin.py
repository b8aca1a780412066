"""Volcano's ssh plugin: a Secret with a key pair and a client configuration, mounted into every container.

Names, keys and modes are those of volcano-sh/volcano, ``pkg/controllers/job/plugins/ssh``. Key pairs are an input: the
Secret has none until ``with_key_pair``, unless the job has its own.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any, Final

from tf_dist.core.model import names
from tf_dist.core.model.job import Job, ReplicaId, SSHPlugin

Body = dict[str, Any]

_PRIVATE, _PUBLIC, _AUTHORIZED, _CONFIG = "id_rsa", "id_rsa.pub", "authorized_keys", "config"
_FOLDER: Final = ".ssh"
_FOR_ROOT: Final = 0o600
_FOR_OTHERS: Final = 0o644  # another path is another user's home, and who that is is not known


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A key pair as OpenSSH reads it: PEM, and one line of ``authorized_keys``."""

    private: str = field(repr=False)
    public: str


def secret_name(job: Job) -> str:
    """The name of the Secret, and of its volume."""
    return f"{job.key.name}-ssh"


def key_secret(job: Job) -> Body:
    """The Secret of the plugin; without keys unless the job has them."""
    plugin = job.plugins.ssh or SSHPlugin()
    body: Body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": names.object_metadata(job, secret_name(job), names.job_labels(job)),
        "data": {_CONFIG: _encoded(client_config(job, plugin.port))},
    }
    if plugin.private_key:
        return with_key_pair(body, KeyPair(plugin.private_key, plugin.public_key))
    return body


def lacks_keys(secret: Body) -> bool:
    """Whether a Secret of ``key_secret`` still lacks its keys."""
    return _PRIVATE not in secret["data"]


def with_key_pair(secret: Body, pair: KeyPair) -> Body:
    """The Secret with this pair, whose private key gives access to every pod of the job."""
    keys = {_PRIVATE: pair.private, _PUBLIC: pair.public, _AUTHORIZED: pair.public}
    return {**secret, "data": {**secret["data"], **{key: _encoded(text) for key, text in keys.items()}}}


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def client_config(job: Job, port: int) -> str:
    """The configuration of the client: an entry for each host, by the name of its pod, without checks of host keys."""
    lines = ["StrictHostKeyChecking no", "UserKnownHostsFile /dev/null"]
    replicas = (ReplicaId(spec.type, index) for spec in job.replica_specs for index in range(spec.most))
    for host, subdomain in dict.fromkeys(names.pod_host(job, replica) for replica in replicas):
        lines += [f"Host {host}", f"  HostName {host}.{subdomain}", f"  Port {port}"]
    return "\n".join(lines) + "\n"


def mount_keys(job: Job, plugin: SSHPlugin, body: Body) -> None:
    """Mount the Secret into every container of a pod spec."""
    name = secret_name(job)
    items = [{"key": key, "path": f"{_FOLDER}/{key}"} for key in (_PRIVATE, _PUBLIC, _AUTHORIZED, _CONFIG)]
    mode = _FOR_ROOT if plugin.path == SSHPlugin().path else _FOR_OTHERS
    volume = {"name": name, "secret": {"secretName": name, "items": items, "defaultMode": mode}}
    body["volumes"] = [*(body.get("volumes") or []), volume]
    mount = {"name": name, "mountPath": plugin.path, "subPath": _FOLDER}
    for container in (c for kind in ("containers", "initContainers") for c in body.get(kind) or ()):
        container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]
