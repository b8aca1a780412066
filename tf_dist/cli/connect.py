"""The one place where commands get their cluster: today the local one, later also contexts of a kubeconfig."""

from __future__ import annotations

from tf_dist.cluster.api import Cluster


def connect() -> Cluster:
    """The cluster that commands work on; Unavailable, with what to do, when there is none."""
    from tf_dist.driver import local

    return local.connect()
