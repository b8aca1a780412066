"""A replica that serves its TF_CONFIG and exits on request. It listens on its own address in TF_CONFIG.

It has the paths of the server in the Kubeflow operator's end-to-end tests (``test/test-server``): ``/tfconfig`` and
``/exit?exitCode=N``.
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
        """Return TF_CONFIG, and exit if the path is ``/exit``."""
        asked = urlsplit(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(CONFIG.encode())
        self.wfile.flush()
        if asked.path == "/exit":
            os._exit(int(parse_qs(asked.query)["exitCode"][0]))

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def main() -> None:
    """Serve requests forever."""
    config = json.loads(CONFIG)
    task = config["task"]
    host, _, port = config["cluster"][task["type"]][task["index"]].partition(":")
    HTTPServer((host, int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
