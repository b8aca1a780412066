"""Who may read logs from the node: asked of the cluster for every caller, as a kubelet does.

A caller shows a client certificate of the cluster's authority (the API server does, if it has one) or a bearer token.
Who it is then must be allowed to ``get nodes/proxy`` of this node.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tf_dist.cluster.api import Cluster, Resource
from tf_dist.cluster.refusals import Unauthorized
from tf_dist.errors import Forbidden

TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", namespaced=False)
ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False)
_REMEMBERED = 60.0  # seconds that a yes is good for; a no is asked again
_MOST = 256


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, in the words of the cluster."""

    user: str
    groups: tuple[str, ...]


class Gate:
    """Lets callers in or not; the cluster decides. For any thread."""

    def __init__(self, cluster: Cluster, node: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._node = node
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._good: dict[object, float] = {}

    def admit(self, certificate: Mapping[str, Any] | None, authorization: str) -> None:
        """Return if the caller may read logs; Unauthorized, Forbidden, or what keeps the cluster from saying so.

        ``certificate``: of the caller, verified; ``authorization``: the header of that name.
        """
        token = authorization[7:].strip() if authorization[:7].lower() == "bearer " else ""
        key: object = _holder(certificate) if certificate else hashlib.sha256(token.encode()).digest()
        if not certificate and not token:
            raise Unauthorized("Unauthorized: show a client certificate of the cluster, or a bearer token")
        if not self._known(key):
            self._ask(_holder(certificate) if certificate else self._bearer(token))
            self._remember(key)

    def _known(self, key: object) -> bool:
        with self._lock:
            return self._good.get(key, float("-inf")) > self._monotonic()

    def _remember(self, key: object) -> None:
        with self._lock:
            if len(self._good) >= _MOST:
                self._good.clear()
            self._good[key] = self._monotonic() + _REMEMBERED

    def _bearer(self, token: str) -> Caller:
        review = self._cluster.create(TOKEN_REVIEWS, None, {"metadata": {}, "spec": {"token": token}})
        status = review.get("status") or {}
        if not status.get("authenticated"):
            raise Unauthorized("Unauthorized: the cluster does not know this token")
        user = status.get("user") or {}
        return Caller(str(user.get("username", "")), tuple(user.get("groups") or ()))

    def _ask(self, caller: Caller) -> None:
        wish = {"verb": "get", "version": "v1", "resource": "nodes", "subresource": "proxy", "name": self._node}
        spec = {"user": caller.user, "groups": list(caller.groups), "resourceAttributes": wish}
        review = self._cluster.create(ACCESS_REVIEWS, None, {"metadata": {}, "spec": spec})
        if not (review.get("status") or {}).get("allowed"):
            raise Forbidden(f"Forbidden: user {caller.user} may not get nodes/proxy of {self._node}")


def _holder(certificate: Mapping[str, Any]) -> Caller:
    """The subject's common name is the user, its organizations are the groups."""
    fields = [field for part in certificate.get("subject", ()) for field in part]
    names = [value for key, value in fields if key == "commonName"]
    groups = [value for key, value in fields if key == "organizationName"]
    if not names:
        raise Unauthorized("Unauthorized: the certificate names nobody")
    return Caller(str(names[0]), (*map(str, groups), "system:authenticated"))
