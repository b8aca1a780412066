"""What a request asks for, in the words in which Kubernetes grants it."""

from __future__ import annotations

from typing import Final, NamedTuple

from tf_dist.cluster.api import Resource

ADDRESSES_HEADER: Final = "x-tf-dist-addresses"
"""In an answer of an embedded cluster without DNS: the path at which it says where endpoints are really reached."""


class Asked(NamedTuple):
    """A verb on a kind, for messages and metrics. ``namespace``: "" for all of them, or for a kind that has none."""

    verb: str
    resource: Resource
    subresource: str = ""
    namespace: str = ""

    @property
    def plural(self) -> str:
        """``pods``, ``tfjobs/status``."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural

    @property
    def granted(self) -> str:
        """The kind as ``kubectl create role --resource`` takes it: ``tfjobs.kubeflow.org/status``."""
        group = f".{self.resource.group}" if self.resource.group else ""
        return f"{self.resource.plural}{group}{'/' if self.subresource else ''}{self.subresource}"

    def __str__(self) -> str:
        where = f" in namespace {self.namespace}" if self.namespace and self.resource.namespaced else ""
        return f"{self.verb} {self.granted}{where}"
