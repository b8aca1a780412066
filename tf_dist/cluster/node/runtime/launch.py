"""From a forked child to the container's program. Runs only in the child; never returns."""

from __future__ import annotations

import json
import os
import signal
from typing import Any, NoReturn

from tf_dist.cluster.node.runtime import cgroups, linux
from tf_dist.cluster.node.runtime.mounts import Mounter, read_only_root

MOUNTED = b"+"
NOT_FOUND, NOT_EXECUTABLE, CANNOT_START = 127, 126, 128


class CannotStart(Exception):
    """Why the program never ran, and the exit code that says so."""

    def __init__(self, message: str, code: int = CANNOT_START) -> None:
        super().__init__(message)
        self.code = code


def launch(spec: dict[str, Any], out: int, err: int, report: int, *, isolated: bool, staging: str) -> NoReturn:
    """Become the program of ``spec``. ``report`` (a socket) says MOUNTED, then why it failed (JSON) or nothing."""
    try:
        _reset()
        cgroups.join(spec.get("cgroups", []))
        security = spec.get("security", {})
        if isolated:
            linux.unshare(linux.CLONE_NEWNS)
            targets = Mounter(staging).volumes(spec["mounts"])
            if security.get("read_only_root"):
                read_only_root(targets)
            os.write(report, MOUNTED)
            os.read(report, 1)  # the shim takes hold of the namespace: its number must not be given out again
        _streams(out, err, security.get("uid"))
        assume(security)
        _enter(spec["cwd"])
        execute(spec["argv"], spec["env"])
    except CannotStart as error:
        _fail(report, str(error), error.code)
    except BaseException as error:
        _fail(report, f"cannot set up the container: {error}", CANNOT_START)


def _fail(report: int, message: str, code: int) -> NoReturn:
    os.write(report, json.dumps({"message": message, "code": code}).encode())
    os._exit(code)


def _reset() -> None:
    """Give the program what any program expects: default signals, a session of its own, an end with its parent."""
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


def assume(security: dict[str, Any]) -> None:
    """Take the container's user, groups and capabilities; what its programs are, they can never have more.

    OSError when the system refuses any of it: the program must not run then.
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
    linux.die_with_parent(signal.SIGKILL)  # forgotten when the user changes


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        raise CannotStart(f"workingDir {folder}: {error.strerror}") from None


def execute(argv: list[str], env: dict[str, str]) -> NoReturn:
    """exec with the PATH of ``env``; CannotStart names the program and where it was looked for."""
    path = env.get("PATH", os.defpath)
    program = argv[0]
    candidates = [program] if "/" in program else [os.path.join(item or ".", program) for item in path.split(":")]
    refused: OSError | None = None
    for candidate in candidates:
        try:
            os.execve(candidate, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            refused = refused or error
    if refused is not None:
        raise CannotStart(f'exec: "{program}": {refused.strerror}', NOT_EXECUTABLE)
    where = "no such file" if "/" in program else f"executable file not found in PATH ({path})"
    raise CannotStart(f'exec: "{program}": {where}', NOT_FOUND)
