"""How the REST client writes its requests and reads whole answers: paths, queries, bodies, sockets."""

from __future__ import annotations

import json
import socket
import ssl
from typing import Any
from urllib.parse import quote, urlencode

from tf_dist.cluster.api import Object, Resource
from tf_dist.cluster.refusals import BadRequest
from tf_dist.cluster.rest_streams import parsed
from tf_dist.errors import Unavailable

_KEEP_ALIVE: tuple[tuple[str, int], ...] = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


def socket_options() -> list[tuple[int, int, int]]:
    """No delay, and keep-alive probes: a followed log may rightly be silent for hours, a dead peer must not be."""
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in _KEEP_ALIVE:
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


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


def asked(verb: str, resource: Resource, subresource: str = "") -> str:
    """What to grant: ``patch tfjobs/status.kubeflow.org``."""
    plural = f"{resource.plural}/{subresource}" if subresource else resource.plural
    return f"{verb} {plural}.{resource.group}" if resource.group else f"{verb} {plural}"


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
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from error


def decoded(data: bytes, asked: str) -> Object:
    """The object in an answer; Unavailable when a proxy or a login page answered instead."""
    found = parsed(data)
    if isinstance(found, dict) and "kind" in found:
        return found
    raise Unavailable(f"{asked}: the answer is not a Kubernetes object")
