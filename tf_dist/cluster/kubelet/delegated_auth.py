"""Delegated authentication and authorization (TokenReview, SubjectAccessReview) of the log server, and its TLS.

A caller shows a client certificate of the cluster's authority (the API server does, if it has one) or a bearer token.
Who it is then must be allowed to ``get nodes/proxy`` of this node.
"""

from __future__ import annotations

import hashlib
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tf_dist.cluster.api import CONFIG_MAPS, Cluster, Resource
from tf_dist.cluster.api_errors import Unauthorized
from tf_dist.errors import ClusterError, Forbidden, Unavailable

TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", namespaced=False)
ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False)
_CACHE_TTL = 60.0  # seconds that a yes is good for; a no is asked again
_CACHE_SIZE = 256


@dataclass(frozen=True, slots=True)
class UserInfo:
    """The user of a request, as in a TokenReview."""

    user: str
    groups: tuple[str, ...]


class DelegatedAuth:
    """Authenticates and authorizes callers by the cluster's decision. Thread-safe."""

    def __init__(self, cluster: Cluster, node: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._node = node
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._good: dict[object, float] = {}

    def admit(self, certificate: Mapping[str, Any] | None, authorization: str) -> None:
        """Return if the caller may read logs; Unauthorized, Forbidden, or the error of asking the cluster.

        ``certificate``: of the caller, verified; ``authorization``: the header of that name.
        """
        token = authorization[7:].strip() if authorization[:7].lower() == "bearer " else ""
        key: object = _certificate_user(certificate) if certificate else hashlib.sha256(token.encode()).digest()
        if not certificate and not token:
            raise Unauthorized("Unauthorized: show a client certificate of the cluster, or a bearer token")
        if not self._known(key):
            self._ask(_certificate_user(certificate) if certificate else self._bearer(token))
            self._remember(key)

    def _known(self, key: object) -> bool:
        with self._lock:
            return self._good.get(key, float("-inf")) > self._monotonic()

    def _remember(self, key: object) -> None:
        with self._lock:
            if len(self._good) >= _CACHE_SIZE:
                self._good.clear()
            self._good[key] = self._monotonic() + _CACHE_TTL

    def _bearer(self, token: str) -> UserInfo:
        review = self._cluster.create(TOKEN_REVIEWS, None, {"metadata": {}, "spec": {"token": token}})
        status = review.get("status") or {}
        if not status.get("authenticated"):
            raise Unauthorized("Unauthorized: the cluster does not know this token")
        user = status.get("user") or {}
        return UserInfo(str(user.get("username", "")), tuple(user.get("groups") or ()))

    def _ask(self, caller: UserInfo) -> None:
        wish = {"verb": "get", "version": "v1", "resource": "nodes", "subresource": "proxy", "name": self._node}
        spec = {"user": caller.user, "groups": list(caller.groups), "resourceAttributes": wish}
        review = self._cluster.create(ACCESS_REVIEWS, None, {"metadata": {}, "spec": spec})
        if not (review.get("status") or {}).get("allowed"):
            raise Forbidden(f"Forbidden: user {caller.user} may not get nodes/proxy of {self._node}")


def _certificate_user(certificate: Mapping[str, Any]) -> UserInfo:
    """The subject's common name is the user, its organizations are the groups."""
    fields = [field for part in certificate.get("subject", ()) for field in part]
    names = [value for key, value in fields if key == "commonName"]
    groups = [value for key, value in fields if key == "organizationName"]
    if not names:
        raise Unauthorized("Unauthorized: the certificate names no user")
    return UserInfo(str(names[0]), (*map(str, groups), "system:authenticated"))


_YEARS = 10  # a new one is made at every start
_OPENSSL_CONFIG = """\
[req]
distinguished_name = name
x509_extensions = usage
prompt = no
[name]
O = tf-dist
CN = {node}
[usage]
subjectAltName = IP:{address}
extendedKeyUsage = serverAuth
"""


def server_tls_context(
    node: str, address: str, authority: str, files: tuple[Path, Path] | None = None
) -> ssl.SSLContext:
    """TLS with the given certificate and key, or with one made now and kept in memory only.

    Callers may show a certificate of ``authority`` (PEM, "" for none). Unavailable when there can be no certificate.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    if authority:
        context.load_verify_locations(cadata=authority)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # authorities of clusters are often not made for it
    try:
        if files is not None:
            context.load_cert_chain(*files)
            return context
        with tempfile.TemporaryDirectory(prefix="tf-dist-") as folder:
            context.load_cert_chain(*_make_certificate(node, address, Path(folder)))
    except (OSError, ValueError) as error:
        where = f"{files[0]} and {files[1]}" if files else "a new certificate"
        raise Unavailable(
            f"cannot use {where} for logs: {error}", hint="--log-cert and --log-key name a pair"
        ) from error
    return context


def _make_certificate(node: str, address: str, folder: Path) -> tuple[Path, Path]:
    config, certificate, key = folder / "config", folder / "certificate", folder / "key"
    config.write_text(_OPENSSL_CONFIG.format(node=node[:64], address=address))
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", str(365 * _YEARS), "-config", config, "-out", certificate, "-keyout", key]  # type: ignore[list-item]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        raise Unavailable(
            "there is no openssl to make a certificate for logs with",
            hint="install it, or name a certificate with --log-cert and --log-key, or say --no-logs",
        ) from None
    except subprocess.SubprocessError as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1:]
        raise Unavailable(f"openssl makes no certificate: {''.join(said)}") from error
    return certificate, key


def client_ca(cluster: Cluster) -> str:
    """The authority of the cluster's client certificates, as published for servers like this; "" if it is not."""
    try:
        found = cluster.get(CONFIG_MAPS, "kube-system", "extension-apiserver-authentication")
    except ClusterError:
        return ""
    return str((found.get("data") or {}).get("client-ca-file", ""))
