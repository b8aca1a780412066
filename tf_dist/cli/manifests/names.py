"""What everything that is installed is called, and the labels by which it is known as tf-dist's."""

from __future__ import annotations

from typing import Any, Final

from tf_dist.client.ownership import PART_OF, TF_DIST

Object = dict[str, Any]

CONTROLLER: Final = "tf-dist-controller"
ARBITER: Final = "tf-dist-arbiter"
DRIVER: Final = "tf-dist-driver"
NODE: Final = "tf-dist-node"
QUEUES: Final = "tf-dist-queues"
FLAVORS: Final = "tf-dist-flavors"

LABELS: Final = {PART_OF: TF_DIST}
SELECTOR: Final = {"app.kubernetes.io/name": CONTROLLER}


def metadata(name: str, namespace: str = "", labels: dict[str, str] | None = None) -> Object:
    """An object's metadata, with the label that says whose it is."""
    where = {"namespace": namespace} if namespace else {}
    return {"name": name, **where, "labels": {**LABELS, **(labels or {})}}
