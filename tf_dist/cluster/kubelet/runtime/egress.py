"""Egress of isolated pods by slirp4netns.

The tap of slirp4netns is a port of the bridge. Traffic between pods does not pass through slirp4netns. slirp4netns
needs the machine's network, which the supervisor leaves permanently (an ordinary user cannot return). Therefore a child
process, the keeper, stays in the machine's network, starts slirp4netns, and restarts it when it is killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import time
from dataclasses import replace
from typing import NoReturn

from tf_dist.cluster.kubelet.runtime import linux
from tf_dist.cluster.kubelet.runtime.event_loop import EventLoop
from tf_dist.cluster.kubelet.runtime.sandbox import MTU, RESOLV, Netlink, PodSubnet
from tf_dist.cluster.kubelet.runtime.shim import detach_process

SLIRP_PROGRAM = "slirp4netns"
TUN_DEVICE = "/dev/net/tun"
TAP_NAME = "tfdout"
_FILE = "resolv.conf"  # in the state folder
_PATIENCE = 0.25  # seconds for the start of slirp4netns
_PAUSE = 0.5  # seconds until a killed program is started again


class Egress:
    """``problem``: how to get egress; "" while pods have egress. ``subnet``: the subnet for new pods."""

    def __init__(self, loop: EventLoop, subnet: PodSubnet) -> None:
        self._loop = loop
        self._without = self.subnet = subnet
        self._keeper: socket.socket | None = None
        self._pid = 0
        self._bridge = 0
        self._settled = True
        self.problem = ""

    def prepare(self) -> None:
        """Start a keeper while this process is in the machine's network. It waits for ``open``."""
        program = shutil.which(SLIRP_PROGRAM)
        if program is None:
            self.problem = f"install {SLIRP_PROGRAM}"
            return
        if not os.access(TUN_DEVICE, os.R_OK | os.W_OK):
            self.problem = f"let this user open {TUN_DEVICE} (chmod 0666)"
            return
        parent, (ours, theirs) = os.getpid(), socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            _keep(program, parent, self.subnet, theirs)
        theirs.close()
        self._keeper = ours

    def open(self, bridge: int) -> None:
        """Start slirp4netns from inside the node's network, without waiting. Until it is ready, packets are lost."""
        if self._keeper is None:
            return
        self._bridge, self._settled = bridge, False
        self._loop.watch(self._keeper.fileno(), self._heard)
        with open(_FILE, "w", encoding="utf-8") as file:
            file.write(resolv_conf(_machines_own(), self.subnet.dns))
        self.subnet = replace(self.subnet, open=True, resolv=os.path.abspath(_FILE))
        with contextlib.suppress(OSError):  # the keeper was killed, which is detected elsewhere
            self._keeper.send(b"\n")

    def settle(self) -> None:
        """Wait a moment until the keeper has reported whether egress works. Usually it already has."""
        deadline = time.monotonic() + _PATIENCE
        while not self._settled and (rest := deadline - time.monotonic()) > 0:
            self._loop.step(rest)

    def close(self) -> None:
        """End the keeper and reap both processes, because the machine's process 1 may not reap orphans."""
        if self._keeper is None:
            return
        self._loop.forget(self._keeper.fileno())
        linux.signal_pids({self._pid}, signal.SIGKILL)
        deadline = time.monotonic() + _PATIENCE
        while linux.child_pids(os.getpid()) and time.monotonic() < deadline:
            self._loop.step(0.01)

    def _heard(self) -> None:
        """Handle the keeper's report: slirp4netns has created its tap (again), or the keeper has ended."""
        assert self._keeper is not None
        self._settled = True
        try:
            ready = self._keeper.recv(64)
        except ConnectionResetError:  # the keeper was killed before it read our message
            ready = b""
        if ready:
            with Netlink() as net:
                net.enslave(TAP_NAME, self._bridge, mtu=MTU)
            return
        self._loop.forget(self._keeper.fileno())
        self._keeper.close()
        self._keeper = None
        self.subnet, self.problem = self._without, f"see why {SLIRP_PROGRAM} ended in supervisor.log"
        sys.stderr.write(f"pods can no longer reach other networks: {SLIRP_PROGRAM} ended\n")
        sys.stderr.flush()


def resolv_conf(machines: str, dns: str) -> str:
    """The machine's file with slirp4netns as the only name server, which asks the machine's first name server."""
    kept = [line for line in machines.splitlines() if not line.lstrip().startswith("nameserver")]
    return "\n".join([f"nameserver {dns}", *kept]) + "\n"


def _machines_own() -> str:
    try:
        with open(RESOLV, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _keep(program: str, parent: int, subnet: PodSubnet, control: socket.socket) -> NoReturn:
    """Run the keeper, which ends with the supervisor. slirp4netns ends with the keeper."""
    try:
        detach_process(control)
        _end_with(parent)
        if control.recv(1) != b"\n":  # the supervisor now has its own network
            os._exit(0)
        while _killed(_start(_command(program, parent, subnet, control.fileno()), control)):
            time.sleep(_PAUSE)
    finally:
        os._exit(0)


def _command(program: str, target: int, subnet: PodSubnet, ready: int) -> list[str]:
    """The command has no sandbox options, because an attacker who controls slirp4netns from a pod gains no more rights
    than the pod has.
    """
    options = ["--disable-host-loopback", f"--cidr={subnet.cidr}", f"--mtu={MTU}", f"--ready-fd={ready}"]
    return [program, *options, str(target), TAP_NAME]


def _start(command: list[str], control: socket.socket) -> int:
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        try:
            _end_with(parent)
            control.set_inheritable(True)
            os.execv(command[0], command)
        finally:
            os._exit(1)
    return pid


def _end_with(parent: int) -> None:
    linux.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the death signal was set up
        os._exit(0)


def _killed(pid: int) -> bool:
    """Wait for the end of slirp4netns. Without a signal, it cannot work here, and supervisor.log has the reason."""
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])
