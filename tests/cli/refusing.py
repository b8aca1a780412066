"""A server with the given answers for some kinds. It answers all other requests with 404."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

STORED: Final[dict[str, Any]] = {}
"""Instead of a body: the server accepts writes and returns the object, and answers reads with the last write."""


@contextmanager
def refusing(answers: dict[str, tuple[int, Any]]) -> Iterator[str]:
    """The URL of a server with these answers for plurals. It answers all other requests with 404."""

    written: dict[str, dict[str, Any]] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = self.path.partition("?")[0].split("/")
            plural = next((part for part in parts if part in answers), "")
            code, body = answers.get(plural, (404, "404 page not found\n"))
            if body is STORED:
                if self.command in ("POST", "PUT"):
                    accepted = json.loads(sent)
                    accepted["metadata"] |= {"uid": "u", "resourceVersion": "1"}
                    written[plural] = accepted
                code, body = (code, written[plural]) if plural in written else (404, "404 page not found\n")
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = answer

        def log_message(self, *arguments: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def forbidden(what: str) -> tuple[int, Any]:
    text = f'{what} is forbidden: User "jane" cannot do that with resource "{what}"'
    return 403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": text}
