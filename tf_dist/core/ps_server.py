"""The standard gRPC server that a v1alpha1 parameter server runs when the job brings no program for it.

The operator of the seed shipped it in a ConfigMap; here it is the container's command, so that it needs no mount. It
takes the same flags: the cluster as ``master|h:p,ps|h:p;h:p``.
"""

from __future__ import annotations

from typing import Any, Final

from tf_dist.core import names, tf_config
from tf_dist.core.model import Job, ReplicaSpec

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


def cluster_flag(job: Job, addresses: tf_config.Addresses) -> str:
    """The ``--cluster_spec`` of a job: types sorted, ``,`` between them and ``;`` between hosts."""
    parts = []
    for spec in sorted(job.replica_specs, key=lambda s: s.type):
        hosts = (names.endpoint(job, spec, index) for index in range(spec.replicas))
        parts.append(f"{spec.type}|{';'.join(addresses.get(host, host) for host in hosts)}")
    return ",".join(parts)


def container(job: Job, spec: ReplicaSpec, index: int, addresses: tf_config.Addresses) -> dict[str, Any]:
    """The container that serves replica ``index`` of a parameter server spec."""
    flags = [f"--cluster_spec={cluster_flag(job, addresses)}", f"--job_name={spec.type}", f"--task_id={index}"]
    return {"name": spec.container, "image": spec.server_image, "command": ["python", "-c", _PROGRAM, *flags]}
