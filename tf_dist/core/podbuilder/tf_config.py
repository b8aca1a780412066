"""TF_CONFIG as the original systems write it.

Key order and the absence of spaces matter, because users compare the text with that of the original Go programs. Two
differences are intended, because TensorFlow 2 does not work with the original: only evaluators have evaluators in their
cluster, and a sparse TF_CONFIG names the chief.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tf_dist.core.model import names
from tf_dist.core.model.job import Job, ReplicaId, ReplicaSpec, Role, TFConfigStyle

ClusterHosts = Mapping[str, Sequence[str]]
"""``host:port`` of each replica, by type and index."""

# Volcano's plugin writes its roles in this order. The Kubeflow operators write a Go map, with sorted keys.
_VOLCANO_ORDER: Final = (Role.PS, Role.WORKER, Role.CHIEF, Role.EVALUATOR)


def cluster_hosts(job: Job, addresses: Mapping[str, str] | None = None) -> ClusterHosts:
    """The addresses of all replicas of a job, computed once for all pods, because every TF_CONFIG names them.

    ``addresses`` maps DNS endpoints to real addresses in a cluster without DNS (see ``Cluster.addresses``).
    """
    used = addresses or {}
    found = ((spec, (names.endpoint(job, spec, index) for index in range(spec.replicas))) for spec in job.replica_specs)
    return {spec.type: [used.get(endpoint, endpoint) for endpoint in endpoints] for spec, endpoints in found}


def tf_config_endpoints(job: Job) -> tuple[str, ...]:
    """Every address in this job's TF_CONFIGs, as cluster DNS names."""
    if job.tf_config is TFConfigStyle.NONE:
        return ()
    return tuple(endpoint for listed in cluster_hosts(job).values() for endpoint in listed)


def build_tf_config(job: Job, replica: ReplicaId, hosts: ClusterHosts) -> str | None:
    """The value of TF_CONFIG for a replica; None if the job gets no TF_CONFIG."""
    spec = job.spec(replica.type)
    if spec is None or job.tf_config is TFConfigStyle.NONE:
        return None
    config = _SHAPES[job.tf_config](job, spec, replica.index, hosts)
    return json.dumps(config, separators=(",", ":"))


def _dense(job: Job, spec: ReplicaSpec, index: int, hosts: ClusterHosts) -> dict[str, Any]:
    cluster = {type_: hosts[type_] for type_ in sorted(hosts) if type_ in _visible_types(job, spec)}
    return {"cluster": cluster, "task": {"type": spec.type, "index": index}, "environment": "cloud"}


def _visible_types(job: Job, spec: ReplicaSpec) -> frozenset[str]:
    """The types in the cluster of a replica of ``spec``. Only evaluators have evaluators in their cluster.

    An evaluator does not run a TensorFlow server, and ``ParameterServerStrategy`` waits for a server of every task that
    the cluster names. The annotation ``tf-dist.dev/evaluator-in-cluster`` restores the original cluster.
    """
    everywhere = spec.role is Role.EVALUATOR or job.annotations.get(names.EVALUATOR_IN_CLUSTER) == "true"
    return frozenset(other.type for other in job.replica_specs if everywhere or other.role is not Role.EVALUATOR)


def _sparse(job: Job, spec: ReplicaSpec, index: int, hosts: ClusterHosts) -> dict[str, Any]:
    """A sparse TF_CONFIG, with which workers can join and leave: a worker's names the chief, the servers and itself.

    The original never names the chief, not even in the chief's own cluster, and puts parameter server 1 at index 0 of a
    list with one entry, so neither can start a TensorFlow server. Here, the chief's TF_CONFIG names every initial
    worker, because a coordinator connects to all workers, and a parameter server's names all servers up to itself.
    """
    by_role = {other.role: hosts[other.type] for other in job.replica_specs}
    workers, servers = by_role.get(Role.WORKER, ()), by_role.get(Role.PS, ())
    leaders = {role.value: listed for role, listed in by_role.items() if role.leads}
    named: dict[Role, tuple[Sequence[int], Sequence[str]]] = {
        Role.CHIEF: (range(len(workers)), servers),
        Role.MASTER: (range(len(workers)), servers),
        Role.WORKER: ((index,), servers),
        Role.PS: ((), servers[: index + 1]),
    }
    indexes, ps = named.get(spec.role, ((), ()))
    cluster = {**leaders, "worker": {str(one): workers[one] for one in indexes}, "ps": list(ps)}
    if spec.role is Role.EVALUATOR:
        cluster[spec.type] = hosts[spec.type]
    return {"cluster": cluster, "task": {"type": spec.type, "index": index}}


def _volcano(job: Job, spec: ReplicaSpec, index: int, hosts: ClusterHosts) -> dict[str, Any]:
    """A dense TF_CONFIG, which names the whole cluster. A task without a role has its own name as the type."""
    visible = _visible_types(job, spec)
    by_role = {other.role: hosts[other.type] for other in job.replica_specs if other.type in visible}
    cluster = {role.value: by_role[role] for role in _VOLCANO_ORDER if by_role.get(role)}
    return {"cluster": cluster, "task": {"type": spec.role.value or spec.name, "index": index}}


_SHAPES: Final = {
    TFConfigStyle.V1ALPHA1: _dense,
    TFConfigStyle.V1: _dense,
    TFConfigStyle.SPARSE: _sparse,
    TFConfigStyle.VOLCANO: _volcano,
}
