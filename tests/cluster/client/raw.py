"""A client of a server that sends fixed bytes."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tf_dist.cluster.client.rest import RestCluster


@contextmanager
def saying(*replies: bytes, bytewise: bool = False, **options: Any) -> Iterator[tuple[RestCluster, list[bytes]]]:
    """A client of a server that sends one reply to each connection, and the requests that the server has received.

    ``bytewise``: each byte is sent separately. By default, the client does not retry. It never waits before a retry.
    """
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)

        def serve() -> None:
            for reply in replies:
                connection, _ = listener.accept()
                with connection:
                    requests.append(_request(connection))
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    size = 1 if bytewise else max(1, len(reply))
                    for at in range(0, len(reply), size):
                        connection.sendall(reply[at : at + size])

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with RestCluster(url, **{"retries": 0, "sleep": lambda _: None, **options}) as client:
            yield client, requests
        thread.join(90)
        assert not thread.is_alive(), "the client made fewer requests than the test has answers"


def _request(connection: socket.socket) -> bytes:
    """Read a whole request. If a server closes with unread data, the client may get a reset instead of the reply."""
    data = b""
    while (part := connection.recv(65536)) and not _is_whole(data := data + part):
        pass
    return data


def _is_whole(data: bytes) -> bool:
    head, end, body = data.partition(b"\r\n\r\n")
    said = re.search(rb"(?i)^content-length: *(\d+)", head, re.MULTILINE)
    return bool(end) and len(body) >= (int(said[1]) if said else 0)


def reply(code: int, body: object, *headers: str) -> bytes:
    data = json.dumps(body).encode() if not isinstance(body, bytes) else body
    head = "".join(f"{header}\r\n" for header in (f"Content-Length: {len(data)}", "Connection: close", *headers))
    return f"HTTP/1.1 {code} X\r\n{head}\r\n".encode() + data


def failure(code: int, reason: str = "", **details: object) -> bytes:
    return reply(code, {"kind": "Status", "code": code, "reason": reason, "message": "no", "details": details})


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
