"""The embedded cluster's HTTP face: the Kubernetes REST dialect on loopback, for kubectl and every client."""

from tf_dist.cluster.http.kubeconfig import kubeconfig
from tf_dist.cluster.http.server import ApiServer

__all__ = ["ApiServer", "kubeconfig"]
