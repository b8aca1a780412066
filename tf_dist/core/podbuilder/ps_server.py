"""The standard parameter server of v1alpha1, which has no template of the user.

The original operator shipped the server in a ConfigMap. Here, the program is the container's command, so it needs no
mount. It has the same flags: the cluster as ``master|h:p,ps|h:p;h:p``.
"""

from __future__ import annotations

from typing import Any, Final

from tf_dist.core.model.fieldpath import list_items, mapping
from tf_dist.core.model.job import Job, ReplicaSpec
from tf_dist.core.podbuilder.tf_config import ClusterHosts

Body = dict[str, Any]

# The fields that a pod, including a generated server, needs to be created, to be scheduled and to pull its image.
_OF_PEERS: Final = (
    "schedulerName",
    "priorityClassName",
    "preemptionPolicy",
    "imagePullSecrets",
    "serviceAccountName",
    "runtimeClassName",
    "tolerations",
)


def fill_from_peers(job: Job, spec: ReplicaSpec, body: Body) -> None:
    """Fill missing fields of a generated server's template from the job's other templates."""
    peers = [other.pod_spec for other in _peers(job, spec)]
    for field in _OF_PEERS:
        found = next((peer[field] for peer in peers if peer.get(field)), None)
        if found and not body.get(field):
            body[field] = found


def _peers(job: Job, spec: ReplicaSpec) -> list[ReplicaSpec]:
    """The job's other specs with a user's template: first the specs that decide success, then in document order."""
    leading = {rule.type for rule in job.success}
    others = [other for other in job.replica_specs if other is not spec and not other.server_image]
    return sorted(others, key=lambda other: other.type not in leading)


# The program runs in the job's TensorFlow image, with any version, so it may import nothing else. The kernel applies no
# default signal action to process 1 of a container, and server.join() would never let Python's signal handler run.
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


def cluster_flag(hosts: ClusterHosts) -> str:
    """The ``--cluster_spec`` of a job: sorted types, with ``,`` between types and ``;`` between hosts."""
    return ",".join(f"{type_}|{';'.join(listed)}" for type_, listed in sorted(hosts.items()))


def ps_server_container(job: Job, spec: ReplicaSpec, index: int, hosts: ClusterHosts) -> dict[str, Any]:
    """The container that serves replica ``index`` of a parameter server spec."""
    flags = [f"--cluster_spec={cluster_flag(hosts)}", f"--job_name={spec.type}", f"--task_id={index}"]
    server = {"name": spec.container, "image": spec.server_image, "command": ["python", "-c", _PROGRAM, *flags]}
    trained = (
        mapping(one)
        for other in _peers(job, spec)
        for one in list_items(other.pod_spec.get("containers"))
        if mapping(one).get("name") == other.container
    )
    pull = next((one["imagePullPolicy"] for one in trained if one.get("imagePullPolicy")), None)
    return {**server, "imagePullPolicy": str(pull)} if pull else server
