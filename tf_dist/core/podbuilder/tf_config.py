"""TF_CONFIG, byte for byte as the original systems write it, and the standard parameter server of v1alpha1.

Key order and the absence of spaces are part of it: the originals are Go programs, and users compare strings.

The operator of the seed shipped it in a ConfigMap; here it is the container's command, so that it needs no mount. It
takes the same flags: the cluster as ``master|h:p,ps|h:p;h:p``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from tf_dist.core.api import names
from tf_dist.core.api.job import Job, ReplicaId, ReplicaSpec, Role, TFConfigStyle
from tf_dist.core.podbuilder.pod_defaults import pull_policy_of_peers

Addresses = Mapping[str, str]

# The Volcano plugin writes its roles in this order; the Kubeflow operators write a Go map, whose keys come sorted.
_VOLCANO_ORDER: Final = (Role.PS, Role.WORKER, Role.CHIEF, Role.EVALUATOR)


def tf_config_endpoints(job: Job) -> tuple[str, ...]:
    """Every address that this job's TF_CONFIGs name, as cluster DNS has them."""
    if job.tf_config is TFConfigStyle.NONE:
        return ()
    return tuple(names.endpoint(job, spec, index) for spec in job.replica_specs for index in range(spec.replicas))


def build_tf_config(job: Job, replica: ReplicaId, addresses: Addresses | None = None) -> str | None:
    """The value of TF_CONFIG for a replica; None where the job's dialect sets none.

    ``addresses`` maps DNS endpoints to the ones really used where DNS does not reach (see ``Cluster.addresses``).
    """
    spec = job.spec(replica.type)
    if spec is None or job.tf_config is TFConfigStyle.NONE:
        return None
    config = _SHAPES[job.tf_config](job, spec, replica.index, addresses or {})
    return json.dumps(config, separators=(",", ":"))


def _hosts(job: Job, spec: ReplicaSpec, addresses: Addresses) -> list[str]:
    found = (names.endpoint(job, spec, index) for index in range(spec.replicas))
    return [addresses.get(endpoint, endpoint) for endpoint in found]


def _dense(job: Job, spec: ReplicaSpec, index: int, addresses: Addresses) -> dict[str, Any]:
    cluster = {other.type: _hosts(job, other, addresses) for other in sorted(job.replica_specs, key=lambda s: s.type)}
    return {"cluster": cluster, "task": {"type": spec.type, "index": index}, "environment": "cloud"}


def _sparse(job: Job, spec: ReplicaSpec, index: int, addresses: Addresses) -> dict[str, Any]:
    """A sparse TF_CONFIG: a worker knows the parameter servers and itself, so that others may join and leave."""
    servers = next((other for other in job.replica_specs if other.role is Role.PS), None)
    workers: dict[str, str] = {}
    ps: list[str] = []
    if spec.role is Role.WORKER:
        workers = {str(index): _hosts(job, spec, addresses)[index]}
        ps = _hosts(job, servers, addresses) if servers else []
    elif spec.role is Role.PS:
        ps = [_hosts(job, spec, addresses)[index]]
    return {"cluster": {"worker": workers, "ps": ps}, "task": {"type": spec.type, "index": index}}


def _volcano(job: Job, spec: ReplicaSpec, index: int, addresses: Addresses) -> dict[str, Any]:
    """Every pod of the job knows the cluster; a task outside the roles has its own name as the type."""
    by_role = {other.role: _hosts(job, other, addresses) for other in job.replica_specs}
    cluster = {role.value: by_role[role] for role in _VOLCANO_ORDER if by_role.get(role)}
    return {"cluster": cluster, "task": {"type": spec.role.value or spec.name, "index": index}}


_SHAPES: Final = {
    TFConfigStyle.V1ALPHA1: _dense,
    TFConfigStyle.V1: _dense,
    TFConfigStyle.SPARSE: _sparse,
    TFConfigStyle.VOLCANO: _volcano,
}


# Runs in the job's TensorFlow image, whichever version that is: it may import nothing else. As a container's process 1
# it gets no default signal action from the kernel, and server.join() would never let Python's own handler run.
_PROGRAM: Final = """\
import argparse, os, signal
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
import tensorflow as tf
parser = argparse.ArgumentParser()
for flag in ("--cluster_spec", "--job_name"):
    parser.add_argument(flag, required=True)
parser.add_argument("--task_id", type=int, required=True)
args = parser.parse_args()
cluster = {}
for part in args.cluster_spec.split(","):
    name, hosts = part.split("|")
    cluster[name] = hosts.split(";")
waits = hasattr(signal, "pthread_sigmask")
if waits:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
train = tf.compat.v1.train if hasattr(tf.compat, "v1") else tf.train
server = train.Server(train.ClusterSpec(cluster), job_name=args.job_name, task_index=args.task_id)
print("serving " + args.job_name + "-" + str(args.task_id) + " at " + server.target, flush=True)
if not waits:
    server.join()
os._exit(128 + signal.sigwait([signal.SIGTERM, signal.SIGINT]))
"""


def cluster_flag(job: Job, addresses: Addresses) -> str:
    """The ``--cluster_spec`` of a job: types sorted, ``,`` between them and ``;`` between hosts."""
    parts = []
    for spec in sorted(job.replica_specs, key=lambda s: s.type):
        hosts = (names.endpoint(job, spec, index) for index in range(spec.replicas))
        parts.append(f"{spec.type}|{';'.join(addresses.get(host, host) for host in hosts)}")
    return ",".join(parts)


def ps_server_container(job: Job, spec: ReplicaSpec, index: int, addresses: Addresses) -> dict[str, Any]:
    """The container that serves replica ``index`` of a parameter server spec."""
    flags = [f"--cluster_spec={cluster_flag(job, addresses)}", f"--job_name={spec.type}", f"--task_id={index}"]
    server = {"name": spec.container, "image": spec.server_image, "command": ["python", "-c", _PROGRAM, *flags]}
    pull = pull_policy_of_peers(job, spec)
    return {**server, "imagePullPolicy": pull} if pull else server
