"""The shims as the supervisor has them: starting, hearing, ending and burying them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from itertools import count

from tf_dist.cluster.node.runtime import members, sandbox
from tf_dist.cluster.node.runtime.loop import Loop
from tf_dist.cluster.node.runtime.pods import Pod, Shim
from tf_dist.cluster.node.runtime.sandbox import Subnet
from tf_dist.cluster.node.runtime.shim import Shim as ShimProcess
from tf_dist.cluster.node.runtime.shim import detach
from tf_dist.cluster.node.runtime.wayout import WayOut
from tf_dist.cluster.node.runtime.wire import Message

PATIENCE = 5.0  # seconds a shim gets to kill what is below it


class Shims:
    """All shims of a node. ``heard`` gets their messages, ``ended`` is called once for each, after its last one."""

    def __init__(
        self, loop: Loop, subnet: Subnet, heard: Callable[[Pod, Message], None], ended: Callable[[Shim, Pod], None]
    ) -> None:
        self._loop = loop
        self.way_out = WayOut(loop, subnet)
        self._heard = heard
        self._ended = ended
        self._bridge: int | None = None  # None: shared mode
        self._cables = count()
        self._shims: dict[int, tuple[Shim, Pod]] = {}
        self._watch_children()

    def enter(self) -> None:
        """Go into the node's own network; from then on pods are isolated. OSError where the system forbids it."""
        self.way_out.prepare()
        self._bridge = sandbox.enter(self.way_out.subnet)
        self.way_out.open(self._bridge)

    def __bool__(self) -> bool:
        return bool(self._shims)

    def of(self, pod: Pod) -> list[Shim]:
        """A pod's shims."""
        return [shim for shim, owner in self._shims.values() if owner is pod]

    def isolate(self, pod: Pod) -> Shim:
        """Namespaces and a network for a pod, with a shim inside."""
        assert self._bridge is not None
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                cable = f"tfd{next(self._cables)}p"
                pid = sandbox.create(pod.spec, self.way_out.subnet, self._bridge, cable, theirs)
        except OSError:
            ours.close()
            raise
        shim = self._adopt(pod, pid, ours)
        ours.send(b"\n")
        return shim

    def share(self, pod: Pod) -> Shim:
        """A shim for one container, in the machine's own namespaces."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                detach(theirs)
                ShimProcess(theirs, isolated=False, staging="").run()
            finally:
                os._exit(1)
        theirs.close()
        return self._adopt(pod, pid, ours)

    def end(self, shim: Shim) -> None:
        """End a shim with everything below it."""
        if self._bridge is not None:
            members.signal_all({shim.pid}, signal.SIGKILL)
            return
        shim.send(op="die")
        self._loop.later(PATIENCE, lambda: self._kill(shim))

    def _kill(self, shim: Shim) -> None:
        if shim.pid in self._shims:
            members.signal_all({shim.pid}, signal.SIGKILL)

    def _adopt(self, pod: Pod, pid: int, control: socket.socket) -> Shim:
        control.settimeout(PATIENCE)
        shim = Shim(pid, control)
        self._shims[pid] = (shim, pod)
        self._loop.watch(control.fileno(), lambda: self._hear(shim, pod))
        return shim

    def _hear(self, shim: Shim, pod: Pod) -> None:
        try:
            data = shim.control.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._loop.forget(shim.control.fileno())
            return
        for message in shim.lines.feed(data):
            self._heard(pod, message)

    def _hear_rest(self, shim: Shim, pod: Pod) -> None:
        shim.control.setblocking(False)
        with contextlib.suppress(OSError):
            while data := shim.control.recv(1 << 16):
                for message in shim.lines.feed(data):
                    self._heard(pod, message)
        self._loop.forget(shim.control.fileno())
        shim.control.close()

    def _watch_children(self) -> None:
        read, write = os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._loop.watch(read, lambda: self._reap(read))

    def _reap(self, wake: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 4096)
        with contextlib.suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self._bury(pid)
        # Orphans of a shim that was itself killed are ours now; nothing else is.
        if self._bridge is None and (orphans := members.children(os.getpid()) - set(self._shims)):
            members.signal_all(orphans, signal.SIGKILL)
            self._loop.later(0.01, lambda: self._reap(wake))

    def _bury(self, pid: int) -> None:
        shim, pod = self._shims.pop(pid, (None, None))
        if shim is not None and pod is not None:
            self._hear_rest(shim, pod)
            self._ended(shim, pod)
