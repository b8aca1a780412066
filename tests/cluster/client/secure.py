"""A TLS server that authenticates its clients, and their certificates and kubeconfigs."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a folder, and the certificates that it has signed."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> Authority:
        if not shutil.which("openssl"):
            pytest.skip("openssl is not installed")
        made = cls(folder)
        for name in ("ca", "other-ca"):
            made._request(name)
            openssl(
                *("req", "-x509", "-key", made.path(f"{name}.key"), "-subj", f"/CN={name}"),
                *("-days", "2", "-out", made.path(f"{name}.crt")),
            )
        made.sign("server", "subjectAltName=IP:127.0.0.1,DNS:api.tf-dist.test")
        for name in ("alice", "bob"):
            made.sign(name, "extendedKeyUsage=clientAuth")
        return made

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    def _request(self, name: str) -> None:
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.path(f"{name}.key"))

    def sign(self, name: str, extension: str) -> None:
        self._request(name)
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(extension)
        csr = self.path(f"{name}.csr")
        openssl("req", "-new", "-key", self.path(f"{name}.key"), "-subj", f"/CN={name}", "-out", csr)
        openssl(
            *("x509", "-req", "-in", csr, "-CA", self.path("ca.crt"), "-CAkey", self.path("ca.key")),
            *("-CAcreateserial", "-days", "2", "-extfile", str(extensions), "-out", self.path(f"{name}.crt")),
        )


@dataclass
class Door:
    """A server that accepts the clients in ``known``: ``Authorization`` headers or names of certificates.

    It answers every GET with an empty list, and records the requests and their clients.
    """

    port: int = 0
    known: set[str] | None = None
    requests: list[dict[str, str]] = field(default_factory=list)
    callers: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def answer(self, headers: dict[str, str], path: str, subject: str) -> int:
        self.requests.append(headers)
        self.paths.append(path)
        self.callers.append(subject)
        known = self.known is None or {headers.get("Authorization", ""), subject} & self.known
        return 200 if known else 401


@contextmanager
def door(authority: Authority | None = None, known: set[str] | None = None) -> Iterator[Door]:
    """Run a server, with TLS if an authority is given."""
    found = Door(known=known)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            certificate = self.connection.getpeercert() if isinstance(self.connection, ssl.SSLSocket) else None
            names = [value for pair in (certificate or {}).get("subject", ()) for _, value in pair]
            code = found.answer(dict(self.headers), self.path, names[0] if names else "")
            body = {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": []}
            data = json.dumps(body if code == 200 else {"kind": "Status", "message": "Unauthorized"}).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that does not trust the certificate disconnects."""

    with Server(("127.0.0.1", 0), Handler) as server:
        if authority is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(authority.path("server.crt"), authority.path("server.key"))
            context.load_verify_locations(authority.path("ca.crt"))
            context.verify_mode = ssl.CERT_OPTIONAL
            server.socket = context.wrap_socket(server.socket, server_side=True)
        found.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


def kubeconfig(
    path: Path,
    server: str,
    *,
    user: dict[str, Any] | None = None,
    name: str = "test",
    namespace: str = "",
    current: bool = True,
    **cluster: Any,
) -> str:
    """Write a kubeconfig with one context, and return its path."""
    context = {"cluster": name, "user": name, **({"namespace": namespace} if namespace else {})}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, **cluster}}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [{"name": name, "context": context}],
        **({"current-context": name} if current else {}),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document))
    return str(path)
