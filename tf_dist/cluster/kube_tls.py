"""TLS as a kubeconfig asks for it. Keys that it holds as data touch no disk where the system can help it."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tf_dist.errors import ClusterError


def context(cluster: Mapping[str, Any]) -> ssl.SSLContext:
    """Trust in the cluster's authority (none given: the system's); ClusterError when it cannot be read."""
    authority = material(cluster, "certificate-authority")
    if cluster.get("insecure-skip-tls-verify"):
        # Only because the kubeconfig says so.
        unverified = ssl.create_default_context()
        unverified.check_hostname = False
        unverified.verify_mode = ssl.CERT_NONE
        return unverified
    try:
        trusted = ssl.create_default_context(cadata=authority.decode("latin-1") if authority else None)
    except ssl.SSLError as error:
        raise ClusterError(
            f"certificate-authority: {error.reason or error}", hint="it must be certificates in PEM"
        ) from error
    if authority:
        # Authorities of clusters are often made by hand: Go asks less of them than OpenSSL's strict mode, and takes
        # any certificate of the file as an anchor.
        trusted.verify_flags &= ~ssl.VERIFY_X509_STRICT
        trusted.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return trusted


def client_certificate(user: Mapping[str, Any]) -> bytes:
    """Chain and key of the user, as one PEM text; empty if the user has none."""
    chain, key = material(user, "client-certificate"), material(user, "client-key")
    if bool(chain) != bool(key):
        missing = "client-key" if chain else "client-certificate"
        raise ClusterError(f"the kubeconfig's user has no {missing}", hint="a certificate and its key go together")
    return chain + b"\n" + key if chain else b""


def material(section: Mapping[str, Any], field: str) -> bytes:
    """The contents of ``FIELD-data`` (base64), else of the file that ``FIELD`` names; ClusterError."""
    if data := section.get(f"{field}-data"):
        try:
            return base64.b64decode("".join(str(data).split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise ClusterError(f"the kubeconfig's {field}-data is not base64") from error
    if not (named := section.get(field)):
        return b""
    try:
        return Path(str(named)).read_bytes()
    except OSError as error:
        raise ClusterError(f"cannot read the kubeconfig's {field} {named}: {error.strerror}") from error


def using(trusted: ssl.SSLContext) -> Callable[[bytes], None]:
    """Makes a context show a certificate (chain and key in PEM) in the handshakes to come; ClusterError."""

    def use(pem: bytes) -> None:
        with _file(pem) as path:
            try:
                # Without a password of ours OpenSSL would ask for one on the terminal.
                trusted.load_cert_chain(path, password="")
            except (ssl.SSLError, OSError, ValueError) as error:
                reason = getattr(error, "reason", None) or error
                hint = "they must belong together, be in PEM, and the key must not be encrypted"
                raise ClusterError(f"client certificate and key: {reason}", hint=hint) from error

    return use


@contextmanager
def _file(data: bytes) -> Iterator[str]:
    """The name of a file with these contents. OpenSSL takes keys from files only."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("tf-dist")
        with os.fdopen(descriptor, "wb") as memory:
            memory.write(data)
            memory.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    with tempfile.NamedTemporaryFile(prefix="tf-dist-") as scratch:
        scratch.write(data)
        scratch.flush()
        yield scratch.name
