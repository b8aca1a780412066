"""What runs beside a container on the kubelet's behalf: hooks and probes, in a child of the shim."""

from __future__ import annotations

import http.client
import os
import signal
import socket
from typing import NoReturn

from tf_dist.cluster.node.runtime import linux
from tf_dist.cluster.node.runtime.launch import CannotStart, assume, execute
from tf_dist.cluster.node.runtime.wire import Message


def probe(message: Message, spec: Message, main: int) -> NoReturn:
    """Run ``argv``, ask ``http`` or connect to ``tcp``, then exit with 0 (good) or another code; never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        linux.die_with_parent(signal.SIGKILL)
        code = _run(message, spec, main)
    except (OSError, CannotStart, http.client.HTTPException):
        pass
    finally:
        os._exit(code)


def _run(message: Message, spec: Message, main: int) -> int:
    if "argv" in message:
        _exec_inside(message["argv"], spec, main)
    if "http" in message:
        return _http(**message["http"], timeout=message["timeout"])
    socket.create_connection((message["tcp"]["host"], message["tcp"]["port"]), message["timeout"]).close()
    return 0


def _exec_inside(argv: list[str], spec: Message, main: int) -> NoReturn:
    if main:
        fd = os.open(f"/proc/{main}/ns/mnt", os.O_RDONLY)
        linux.setns(fd, linux.CLONE_NEWNS)
    assume(spec.get("security", {}))
    os.chdir(spec["cwd"])
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    execute(argv, spec["env"])


def _http(host: str, port: int, path: str, headers: dict[str, str], timeout: float) -> int:
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    connection.request("GET", path, headers=headers)
    return 0 if 200 <= connection.getresponse().status < 400 else 1
