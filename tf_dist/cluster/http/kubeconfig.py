"""How kubectl and the official client find the embedded cluster."""

from __future__ import annotations

from urllib.parse import quote

from tf_dist.cluster.api import Object
from tf_dist.cluster.http.reviews import USER


def kubeconfig(url: str, token: str, *, name: str = "tf-dist", namespace: str = "default") -> Object:
    """A kubeconfig document with one cluster, one user and one context. It holds the token: keep it to its owner.

    The token is there twice: kubectl ignores a user's token on a URL without TLS, but sends what the URL itself
    carries (and masks it in messages); the Python client does it the other way round.
    """
    scheme, _, place = url.partition("://")
    server = f"{scheme}://{USER}:{quote(token, safe='')}@{place}"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}],
        "current-context": name,
    }
