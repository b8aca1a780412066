"""TF_CONFIG: what each replica is told about its cluster, byte for byte as the original systems tell it.

Key order and the absence of spaces are part of it: the originals are Go programs, and users compare strings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from tf_dist.core import names
from tf_dist.core.model import Job, ReplicaId, ReplicaSpec, Role, TFConfigStyle

Addresses = Mapping[str, str]

# The Volcano plugin writes its roles in this order; the Kubeflow operators write a Go map, whose keys come sorted.
_VOLCANO_ORDER: Final = (Role.PS, Role.WORKER, Role.CHIEF, Role.EVALUATOR)


def endpoints(job: Job) -> tuple[str, ...]:
    """Every address that this job's TF_CONFIGs name, as cluster DNS has them."""
    if job.tf_config is TFConfigStyle.NONE:
        return ()
    return tuple(names.endpoint(job, spec, index) for spec in job.replica_specs for index in range(spec.replicas))


def tf_config(job: Job, replica: ReplicaId, addresses: Addresses | None = None) -> str | None:
    """The value of TF_CONFIG for a replica; None where the job's dialect sets none.

    ``addresses`` maps DNS endpoints to the ones really used where DNS does not reach (see ``Cluster.addresses``).
    """
    spec = job.spec(replica.type)
    if spec is None or job.tf_config is TFConfigStyle.NONE:
        return None
    config = _SHAPES[job.tf_config](job, spec, replica.index, addresses or {})
    return None if config is None else json.dumps(config, separators=(",", ":"))


def _hosts(job: Job, spec: ReplicaSpec, addresses: Addresses) -> list[str]:
    found = (names.endpoint(job, spec, index) for index in range(spec.replicas))
    return [addresses.get(endpoint, endpoint) for endpoint in found]


def _dense(job: Job, spec: ReplicaSpec, index: int, addresses: Addresses) -> dict[str, Any]:
    cluster = {other.type: _hosts(job, other, addresses) for other in sorted(job.replica_specs, key=lambda s: s.type)}
    return {"cluster": cluster, "task": {"type": spec.type, "index": index}, "environment": "cloud"}


def _sparse(job: Job, spec: ReplicaSpec, index: int, addresses: Addresses) -> dict[str, Any]:
    """Every worker knows the parameter servers and itself, so that others may come and go."""
    servers = next((other for other in job.replica_specs if other.role is Role.PS), None)
    workers: dict[str, str] = {}
    ps: list[str] = []
    if spec.role is Role.WORKER:
        workers = {str(index): _hosts(job, spec, addresses)[index]}
        ps = _hosts(job, servers, addresses) if servers else []
    elif spec.role is Role.PS:
        ps = [_hosts(job, spec, addresses)[index]]
    return {"cluster": {"worker": workers, "ps": ps}, "task": {"type": spec.type, "index": index}}


def _volcano(job: Job, spec: ReplicaSpec, index: int, addresses: Addresses) -> dict[str, Any] | None:
    if spec.role not in _VOLCANO_ORDER:
        return None
    by_role = {other.role: _hosts(job, other, addresses) for other in job.replica_specs}
    cluster = {role.value: by_role[role] for role in _VOLCANO_ORDER if by_role.get(role)}
    return {"cluster": cluster, "task": {"type": spec.role.value, "index": index}}


_SHAPES: Final = {
    TFConfigStyle.V1ALPHA1: _dense,
    TFConfigStyle.V1: _dense,
    TFConfigStyle.SPARSE: _sparse,
    TFConfigStyle.VOLCANO: _volcano,
}
