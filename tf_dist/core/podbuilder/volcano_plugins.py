"""Volcano's job plugins: env (index variables), svc (host files, names, network policy) and ssh; its labels of pods.

The ssh plugin is a Secret with a key pair and a client configuration, mounted into every container. Names, keys and
modes are those of volcano-sh/volcano, ``pkg/controllers/job/plugins/ssh``. Key pairs are an input: the Secret has none
until ``with_key_pair``, unless the job has its own.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tf_dist.core.model import names
from tf_dist.core.model.job import Job, ReplicaId, ReplicaSpec, SSHPlugin

Body = dict[str, Any]

_MOUNT_PATH: Final = "/etc/volcano"
_INDEX_VARIABLES: Final = ("VK_TASK_INDEX", "VC_TASK_INDEX")


def config_map_name(job: str) -> str:
    """The name of the ConfigMap with the host files of the job of this name."""
    return f"{job}-svc"


def task_hosts(job: Job, spec: ReplicaSpec) -> list[str]:
    """The names of a task's pods, as in its host file. A template with a fixed host name has one for all."""
    hosts = (".".join(names.pod_host(job, replica)) for replica in spec.ids)
    return list(dict.fromkeys(hosts))


def host_file_data(job: Job) -> dict[str, str]:
    """The data of the svc plugin's ConfigMap: ``<task>.host`` files and the variables made from them."""
    data: dict[str, str] = {}
    for spec in job.replica_specs:
        listed = task_hosts(job, spec)
        data[f"{spec.name.replace('-', '_')}.host"] = "\n".join(listed)
        data[f"{names.hosts_prefix(spec.name)}_HOSTS"] = ",".join(listed)
        data[f"{names.hosts_prefix(spec.name)}_NUM"] = str(len(listed))
    return data


def plugin_objects(job: Job) -> dict[tuple[str, str], Callable[[], Body]]:
    """How the ConfigMap and the NetworkPolicy of the svc plugin are made, by kind and name."""
    makers: dict[tuple[str, str], Callable[[], Body]] = {}
    if job.plugins.svc:
        makers["ConfigMap", config_map_name(job.key.name)] = partial(_config_map, job)
    if job.plugins.svc and job.plugins.network_policy:
        makers["NetworkPolicy", job.key.name] = partial(_network_policy, job)
    return makers


def _config_map(job: Job) -> Body:
    metadata = names.object_metadata(job, config_map_name(job.key.name), names.job_labels(job))
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": host_file_data(job)}


def _network_policy(job: Job) -> Body:
    own = {"matchLabels": {names.JOB_UID: job.uid}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": names.object_metadata(job, job.key.name, names.job_labels(job)),
        "spec": {"podSelector": own, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": own}]}]},
    }


def apply_plugins(job: Job, replica: ReplicaId, body: Body) -> None:
    """Edit a pod spec as the job's plugins do."""
    if job.plugins.env:
        index = [{"name": name, "value": str(replica.index)} for name in _INDEX_VARIABLES]
        _each_container(body, "env", index, init=True)
    if job.plugins.svc:
        volume = config_map_name(job.key.name)
        body["volumes"] = [*(body.get("volumes") or []), {"name": volume, "configMap": {"name": volume}}]
        _each_container(body, "volumeMounts", [{"name": volume, "mountPath": _MOUNT_PATH}], init=True)
        if job.plugins.hosts_env:
            stems = (names.hosts_prefix(spec.name) for spec in job.replica_specs)
            keys = (key for stem in stems for key in (f"{stem}_HOSTS", f"{stem}_NUM"))
            sources = ((key, {"configMapKeyRef": {"name": volume, "key": key}}) for key in keys)
            variables = [{"name": key, "valueFrom": source} for key, source in sources]
            _each_container(body, "env", variables, init=True)
    if job.plugins.ssh is not None:
        mount_keys(job, job.plugins.ssh, body)
    for number, stated in enumerate(job.volumes):
        name = f"{job.key.name}-volume-{number}"
        claim = {"name": name, "persistentVolumeClaim": {"claimName": stated["volumeClaimName"]}}
        body["volumes"] = [*(body.get("volumes") or []), claim]
        _each_container(body, "volumeMounts", [{"name": name, "mountPath": stated["mountPath"]}])


def _each_container(body: Body, field: str, items: list[Body], *, init: bool = False) -> None:
    kinds = ("containers", "initContainers") if init else ("containers",)
    for container in (c for kind in kinds for c in body.get(kind) or ()):
        container[field] = [*(container.get(field) or []), *items]


_PREFIX: Final = "volcano.sh/"
_PREEMPTABLE: Final = f"{_PREFIX}preemptable"
_COOLDOWN: Final = f"{_PREFIX}cooldown-time"

# Of the job's annotations and labels those that its pods have, too.
_COPIED_ANNOTATIONS: Final = (_PREEMPTABLE, _COOLDOWN, f"{_PREFIX}revocable-zone")
_COPIED_LABELS: Final = (_PREEMPTABLE, _COOLDOWN)
# One of them: the first that is there.
_DISRUPTION_BUDGET: Final = (f"{_PREFIX}jdb-min-available", f"{_PREFIX}jdb-max-unavailable")


def pod_annotations(job: Job, spec: ReplicaSpec, index: int, attempt: str, retries: int) -> dict[str, str]:
    """Annotations of a pod of ``attempt`` (``Attempts.label``), created after this number of ``retries``."""
    first = attempt.partition(".")[0]
    own = {
        "task-index": str(index),
        "task-spec": spec.name,
        "job-name": job.key.name,
        "queue-name": job.scheduling.queue,
        # How often the whole job was restarted before this attempt.
        "job-version": str(max(0, int(first) - 1) if first.isdecimal() else 0),
        "job-retry-count": str(retries),
        "template-uid": f"{job.key.name}-{spec.name}",
    }
    budget = [key for key in _DISRUPTION_BUDGET if key in job.annotations][:1]
    return {
        **{f"{_PREFIX}{key}": value for key, value in own.items()},
        **_copied(job.annotations, (*_COPIED_ANNOTATIONS, *budget)),
    }


def pod_labels(job: Job) -> dict[str, str]:
    """Labels of the job that its pods have, too; those of a replica are in ``names.replica_labels``."""
    return _copied(job.labels, _COPIED_LABELS)


def _copied(found: Mapping[str, str], keys: tuple[str, ...]) -> dict[str, str]:
    return {key: found[key] for key in keys if key in found}


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
