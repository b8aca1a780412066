"""The TLS side of the log server: a certificate of its own, and the authority that callers' certificates come from."""

from __future__ import annotations

import ssl
import subprocess
import tempfile
from pathlib import Path

from tf_dist.cluster.api import CONFIG_MAPS, Cluster
from tf_dist.errors import ClusterError, Unavailable

_YEARS = 10  # a new one is made at every start
_CONFIG = """\
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


def server_context(node: str, address: str, authority: str, files: tuple[Path, Path] | None = None) -> ssl.SSLContext:
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
            context.load_cert_chain(*_make(node, address, Path(folder)))
    except (OSError, ValueError) as error:
        where = f"{files[0]} and {files[1]}" if files else "a new certificate"
        raise Unavailable(
            f"cannot use {where} for logs: {error}", hint="--log-cert and --log-key name a pair"
        ) from error
    return context


def _make(node: str, address: str, folder: Path) -> tuple[Path, Path]:
    config, certificate, key = folder / "config", folder / "certificate", folder / "key"
    config.write_text(_CONFIG.format(node=node[:64], address=address))
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


def client_authority(cluster: Cluster) -> str:
    """The authority of the cluster's client certificates, as published for servers like this; "" if it is not."""
    try:
        found = cluster.get(CONFIG_MAPS, "kube-system", "extension-apiserver-authentication")
    except ClusterError:
        return ""
    return str((found.get("data") or {}).get("client-ca-file", ""))
