"""Starts a container's program, a hook or a probe in a forked child. Runs only in the child; never returns."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from typing import Any, NoReturn

from tf_dist.cluster.kubelet.runtime import cgroups, linux
from tf_dist.cluster.kubelet.runtime.event_loop import Message
from tf_dist.cluster.kubelet.runtime.mounts import Mounter, read_only_root

MOUNTED = b"+"
MAX_MESSAGE = 4096  # characters
NOT_FOUND, NOT_EXECUTABLE, CANNOT_START_CODE = 127, 126, 128


class ContainerStartError(Exception):
    """The program could not be started: the reason and the exit code."""

    def __init__(self, message: str, code: int = CANNOT_START_CODE) -> None:
        super().__init__(message)
        self.code = code


def exec_container(spec: dict[str, Any], out: int, err: int, report: int, *, isolated: bool, staging: str) -> NoReturn:
    """Become the program of ``spec``. Sends MOUNTED to the socket ``report``, and after a failure the reason (JSON)."""
    try:
        _reset()
        cgroups.join_cgroups(spec.get("cgroups", []))
        security = spec.get("security", {})
        if isolated:
            linux.unshare(linux.CLONE_NEWNS)
            targets = Mounter(staging).volumes(spec["mounts"])
            if security.get("read_only_root"):
                read_only_root(targets)
            os.write(report, MOUNTED)
            os.read(report, 1)  # wait until the shim has opened the namespace, so that its number is not reused
        _streams(out, err, security.get("uid"))
        apply_security(security)
        _enter(spec["cwd"])
        exec_program(spec["argv"], spec["env"])
    except ContainerStartError as error:
        _fail(report, str(error), error.code)
    except BaseException as error:
        _fail(report, f"cannot set up the container: {error}", CANNOT_START_CODE)


def _fail(report: int, message: str, code: int) -> NoReturn:
    # The shim reads the report with one call.
    os.write(report, json.dumps({"message": message[:MAX_MESSAGE], "code": code}).encode())
    os._exit(code)


def _reset() -> None:
    """Prepare the process for a program: default signals, a new session, an end with its parent."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.setsid()
    os.umask(0o022)
    linux.die_with_parent(signal.SIGKILL)


def _streams(out: int, err: int, uid: int | None) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    for number, fd in enumerate((null, out, err)):
        os.dup2(fd, number)
    if uid:
        for number in (1, 2):
            os.fchown(number, uid, -1)  # else its user could not open /dev/stdout


def apply_security(security: dict[str, Any]) -> None:
    """Switch to the container's user, groups and capabilities.

    Its programs can never gain more rights. OSError when the system refuses a step; the program must not run then.
    """
    uid, gid, groups, kept = (security.get(key) for key in ("uid", "gid", "groups", "capabilities"))
    if kept is not None:
        linux.bound_capabilities(kept)
    if groups is not None:
        os.setgroups(groups)
    if gid is not None:
        os.setresgid(gid, gid, gid)
    if uid is not None:
        os.setresuid(uid, uid, uid)
    if kept is not None:
        linux.set_capabilities(kept)
    linux.no_new_privs()
    linux.die_with_parent(signal.SIGKILL)  # the kernel resets it when the user changes


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        raise ContainerStartError(f"workingDir {folder}: {error.strerror}") from None


def exec_program(argv: list[str], env: dict[str, str]) -> NoReturn:
    """exec with the PATH of ``env``; ContainerStartError names the program and the searched path."""
    path = env.get("PATH", os.defpath)
    program = argv[0]
    candidates = [program] if "/" in program else [os.path.join(item or ".", program) for item in path.split(":")]
    refused: OSError | None = None
    for candidate in candidates:
        try:
            os.execve(candidate, argv, env)
        except (FileNotFoundError, NotADirectoryError) as error:
            refused = refused or _without_interpreter(candidate, error)
        except OSError as error:
            refused = refused or error
    if refused is not None:
        code = NOT_FOUND if isinstance(refused, FileNotFoundError) else NOT_EXECUTABLE
        raise ContainerStartError(f'exec: "{program}": {refused.strerror}', code)
    where = "no such file" if "/" in program else f"executable file not found in PATH ({path})"
    raise ContainerStartError(f'exec: "{program}": {where}', NOT_FOUND)


def _without_interpreter(candidate: str, error: OSError) -> OSError | None:
    """The message for an existing script whose interpreter does not exist."""
    try:
        with open(candidate, "rb") as file:
            first = file.readline(256)
    except OSError:
        return None
    if not first.startswith(b"#!"):
        return None
    interpreter = first[2:].rstrip(b"\n").decode(errors="replace").strip(" ")
    error.strerror = f"no such interpreter: {interpreter!r} (in its first line)"
    return error


def run_probe(message: Message, spec: Message, main: int) -> NoReturn:
    """Run ``argv``, request ``http`` or connect to ``tcp``; exit with 0 (success) or another code. Never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        linux.die_with_parent(signal.SIGKILL)
        code = _probe_once(message, spec, main)
    except (OSError, ContainerStartError, http.client.HTTPException):
        pass
    finally:
        os._exit(code)


def _probe_once(message: Message, spec: Message, main: int) -> int:
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
    apply_security(spec.get("security", {}))
    os.chdir(spec["cwd"])
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    exec_program(argv, spec["env"])


def _http(host: str, port: int, path: str, headers: dict[str, str], timeout: float) -> int:
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    connection.request("GET", path, headers=headers)
    return 0 if 200 <= connection.getresponse().status < 400 else 1
