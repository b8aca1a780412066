"""A replica that serves its TF_CONFIG, and exits when it is asked to, at its own address in TF_CONFIG.

As the server of the Kubeflow operator's end-to-end tests (``test/test-server``): ``/tfconfig``, ``/exit?exitCode=N``.
"""

from __future__ import annotations

import json
import os
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

CONFIG = os.environ.get("TF_CONFIG", "")


class Handler(BaseHTTPRequestHandler):
    """The two requests."""

    def do_GET(self) -> None:
        """Answer, and exit if that was the request."""
        asked = urlsplit(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(CONFIG.encode())
        self.wfile.flush()
        if asked.path == "/exit":
            os._exit(int(parse_qs(asked.query)["exitCode"][0]))

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


def main() -> None:
    """Serve for ever."""
    config = json.loads(CONFIG)
    task = config["task"]
    host, _, port = config["cluster"][task["type"]][task["index"]].partition(":")
    HTTPServer((host, int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
