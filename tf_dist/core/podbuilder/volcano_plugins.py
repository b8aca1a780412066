"""Volcano's job plugins: env (index variables), svc (host files, names, network policy) and ssh, and labels of pods.

The ssh plugin is a Secret with a key pair and a client configuration, mounted into every container. Names, keys and
modes are those of ``pkg/controllers/job/plugins/ssh`` (volcano-sh/volcano). Key pairs are an input: ``with_key_pair``
adds a pair to the Secret, unless the job has its own pair.
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
    """The name of the ConfigMap with the host files of a job."""
    return f"{job}-svc"


def task_hosts(job: Job, spec: ReplicaSpec) -> list[str]:
    """The names of a task's pods, as in its host file. If the template has a fixed host name, all pods share a name."""
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
    """The functions that build the ConfigMap and the NetworkPolicy of the svc plugin, by kind and name."""
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
    """Apply the changes of the job's plugins, and its volumes, to a pod spec."""
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

# Annotations and labels of the job that are copied to its pods.
_COPIED_ANNOTATIONS: Final = (_PREEMPTABLE, _COOLDOWN, f"{_PREFIX}revocable-zone")
_COPIED_LABELS: Final = (_PREEMPTABLE, _COOLDOWN)
# Only the first of these annotations that the job has is copied.
_DISRUPTION_BUDGET: Final = (f"{_PREFIX}jdb-min-available", f"{_PREFIX}jdb-max-unavailable")


def pod_annotations(job: Job, spec: ReplicaSpec, index: int, attempt: str, retries: int) -> dict[str, str]:
    """The annotations of a pod of ``attempt`` (``Attempts.label``), created after this number of ``retries``."""
    first = attempt.partition(".")[0]
    own = {
        "task-index": str(index),
        "task-spec": spec.name,
        "job-name": job.key.name,
        "queue-name": job.scheduling.queue,
        # The number of restarts of the whole job before this attempt.
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
    """The labels of the job that its pods also have; ``names.replica_labels`` has the labels of a replica."""
    return _copied(job.labels, _COPIED_LABELS)


def _copied(found: Mapping[str, str], keys: tuple[str, ...]) -> dict[str, str]:
    return {key: found[key] for key in keys if key in found}


_PRIVATE, _PUBLIC, _AUTHORIZED, _CONFIG = "id_rsa", "id_rsa.pub", "authorized_keys", "config"


_FOLDER: Final = ".ssh"
_FOR_ROOT: Final = 0o600
_FOR_OTHERS: Final = 0o644  # another path is in the home of another user, who is unknown


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A key pair in OpenSSH's formats: PEM, and a line of ``authorized_keys``."""

    private: str = field(repr=False)
    public: str


def secret_name(job: Job) -> str:
    """The name of the Secret, and of its volume."""
    return f"{job.key.name}-ssh"


def key_secret(job: Job) -> Body:
    """The Secret of the plugin, without keys unless the job has its own."""
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
    """The Secret with this key pair. Its private key gives access to every pod of the job."""
    keys = {_PRIVATE: pair.private, _PUBLIC: pair.public, _AUTHORIZED: pair.public}
    return {**secret, "data": {**secret["data"], **{key: _encoded(text) for key, text in keys.items()}}}


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def client_config(job: Job, port: int) -> str:
    """The configuration of the SSH client, without checks of host keys: an entry for each host, by its pod's name."""
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
