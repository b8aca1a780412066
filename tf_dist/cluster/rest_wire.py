"""How the REST client writes its requests and reads whole answers: paths, queries, bodies, sockets."""

from __future__ import annotations

import json
import socket
import ssl
from typing import Any, cast
from urllib.parse import quote, unquote, urlencode, urlsplit

import urllib3

from tf_dist.cluster.api import Object, Resource
from tf_dist.cluster.asked import Asked
from tf_dist.cluster.refusals import BadRequest
from tf_dist.cluster.rest_connection import PlainPool, SecurePool
from tf_dist.cluster.rest_streams import parsed
from tf_dist.errors import ClusterError, Unavailable

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_KEEP_ALIVE: tuple[tuple[str, int], ...] = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


def socket_options() -> list[tuple[int, int, int]]:
    """No delay, and keep-alive probes: a followed log may rightly be silent for hours, a dead peer must not be."""
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in _KEEP_ALIVE:
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def pool(
    url: str, tls: ssl.SSLContext | None, server_name: str, proxy: str, connections: int
) -> PlainPool | SecurePool:
    """The connections to one server, at most ``connections`` kept open; ClusterError for addresses that are none."""
    settings: dict[str, Any] = {"maxsize": connections, "block": False, "socket_options": socket_options()}
    if url.startswith("https:"):
        settings["ssl_context"] = tls
        if server_name:
            settings["server_hostname"] = server_name
    try:
        manager = _manager(proxy, settings)
        manager.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}
        return cast(PlainPool | SecurePool, manager.connection_from_url(url))
    except ValueError as error:  # its text may have the login of a proxy in it
        what = "server or proxy" if proxy else "server"
        raise ClusterError(f"the URL of the {what} is no address", hint="write https://HOST:PORT") from error


def _manager(proxy: str, settings: dict[str, Any]) -> urllib3.PoolManager:
    if not proxy:
        return urllib3.PoolManager(**settings)
    found = urlsplit(proxy)
    if found.scheme.startswith("socks"):
        try:
            from urllib3.contrib.socks import SOCKSProxyManager
        except ImportError as error:
            raise ClusterError(f"the proxy {found.hostname} needs a package", hint="pip install PySocks") from error
        return SOCKSProxyManager(proxy, **settings)
    if found.scheme not in ("http", "https") or not found.hostname:
        raise ClusterError(f"{found.scheme}://{found.hostname} is no proxy", hint="write http://HOST:PORT")
    login = f"{unquote(found.username)}:{unquote(found.password or '')}" if found.username else None
    return urllib3.ProxyManager(proxy, proxy_headers=urllib3.make_headers(proxy_basic_auth=login), **settings)


def context(ca_file: str | None, cert_file: str | None, key_file: str | None) -> ssl.SSLContext:
    """TLS as the system trusts, or the given authority; with a client certificate if there is one."""
    trusted = ssl.create_default_context(cafile=ca_file)
    if cert_file:
        trusted.load_cert_chain(cert_file, key_file)
    return trusted


def collection(resource: Resource, namespace: str | None) -> str:
    """The path of all objects of a kind, in a namespace or everywhere."""
    return resource.path(_part(namespace) if namespace else None)


def place(resource: Resource, namespace: str | None, name: str, subresource: str = "") -> str:
    """The path of one object; BadRequest without its name."""
    # Without its name the path of an object is its collection's: a delete would take everything.
    if not name or (resource.namespaced and not namespace):
        raise BadRequest(f"{resource.plural} are asked for by name and, if they are in one, by namespace")
    return resource.path(_part(namespace) if namespace else None, _part(name), subresource)


def _part(text: str) -> str:
    # Dots alone would be taken for a way up the path.
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")


def query(**values: str | int) -> str:
    """A query string of what is not empty, with its question mark."""
    given = {name: value for name, value in values.items() if value != ""}
    return f"?{urlencode(given)}" if given else ""


def flag(value: bool) -> str:
    """A boolean in a query: nothing when it is false."""
    return "true" if value else ""


def encoded(body: Any) -> bytes:
    """A body's bytes; BadRequest."""
    try:
        return _ENCODER.encode(body).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from error


def decoded(data: bytes, asked: Asked) -> Object:
    """The object in an answer; Unavailable when a proxy or a login page answered instead."""
    found = parsed(data)
    if isinstance(found, dict) and "kind" in found:
        return found
    raise Unavailable(f"{asked}: the answer is not a Kubernetes object")
