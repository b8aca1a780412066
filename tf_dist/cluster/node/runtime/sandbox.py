"""A pod's namespaces and network: what isolated mode puts around a shim."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from dataclasses import dataclass
from typing import NoReturn

from tf_dist.cluster.node.runtime import linux
from tf_dist.cluster.node.runtime.mounts import Mounter
from tf_dist.cluster.node.runtime.netlink import Netlink
from tf_dist.cluster.node.runtime.shim import Shim, detach
from tf_dist.cluster.node.runtime.wire import Message, encode

BRIDGE = "tfd0"
RESOLV = "/etc/resolv.conf"
MTU = 65520  # the larger the packets, the less work for slirp4netns: 4 times what it moves with 1500
_POD = linux.CLONE_NEWNET | linux.CLONE_NEWNS | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC | linux.CLONE_NEWPID


@dataclass(frozen=True, slots=True)
class Subnet:
    """Where pods live: the bridge's address (the first one) and the prefix length; whether there is a way out."""

    bridge: str
    prefix: int
    open: bool = False
    resolv: str = ""  # what pods see as /etc/resolv.conf, "" for the machine's own

    @property
    def cidr(self) -> str:
        """The whole, as ``10.88.0.0/16``."""
        return f"{self._beside(-1)}/{self.prefix}"

    @property
    def gateway(self) -> str:
        """Where slirp4netns takes packets: by its convention the second address."""
        return self._beside(1)

    @property
    def dns(self) -> str:
        """Where it answers for the machine's name server: the third."""
        return self._beside(2)

    def _beside(self, step: int) -> str:
        number = int.from_bytes(socket.inet_aton(self.bridge), "big") + step
        return socket.inet_ntoa(number.to_bytes(4, "big"))


def enter(subnet: Subnet) -> int:
    """Put this process (the supervisor) into a network of its own with a bridge; the bridge's index."""
    flags = linux.CLONE_NEWNET | linux.CLONE_NEWNS
    if linux.has_sys_admin():
        linux.unshare(flags)
    else:
        uid, gid = os.geteuid(), os.getegid()
        linux.unshare(flags | linux.CLONE_NEWUSER)
        _map_ids(uid, gid)
    linux.mount("", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    with Netlink() as net:
        net.up("lo")
        index = net.bridge(BRIDGE)
        net.address(index, subnet.bridge, subnet.prefix)
    return index


def _map_ids(uid: int, gid: int) -> None:
    """Stay who we are: files keep their owner, programs see their own user, capabilities end at exec."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def mac_of(ip: str) -> bytes:
    """A hardware address that follows from the IP: a restarted replica is found at once (no stale ARP entry)."""
    return b"\x02\x42" + socket.inet_aton(ip)


def create(pod: Message, subnet: Subnet, bridge: int, cable: str, control: socket.socket) -> int:
    """Fork a shim as process 1 of new namespaces and plug it into the bridge; its pid. It still waits for ``go``."""
    read, write = os.pipe()
    middle = os.fork()
    if middle == 0:
        _split(pod, subnet, control, write)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        answer = file.read()
    os.waitpid(middle, 0)
    if len(answer) != 4:
        raise OSError(f"cannot make the pod's namespaces: {answer.decode() or 'the process died'}")
    pid: int = struct.unpack("i", answer)[0]
    with Netlink() as net:
        net.veth(cable, bridge, peer="eth0", peer_pid=pid, mac=mac_of(pod["ip"]), mtu=MTU)
    return pid


def _split(pod: Message, subnet: Subnet, control: socket.socket, report: int) -> NoReturn:
    """In the middle process: new namespaces, then the child that is process 1 of them."""
    try:
        linux.unshare(_POD)
        pid = os.fork()
        if pid == 0:
            _first(pod, subnet, control)
        os.write(report, struct.pack("i", pid))
    except OSError as error:
        os.write(report, str(error).encode())
    finally:
        os._exit(0)


def _first(pod: Message, subnet: Subnet, control: socket.socket) -> NoReturn:
    """Process 1 of the pod."""
    try:
        detach(control)
        if control.recv(1) != b"\n":  # the cable is plugged in, and the supervisor is now our parent
            os._exit(0)
        linux.die_with_parent(9)
        _settle(pod, subnet)
        control.sendall(encode({"event": "ready"}))
        Shim(control, isolated=True, staging=pod["staging"]).run()
    except BaseException as error:
        with contextlib.suppress(OSError):
            control.sendall(encode({"event": "broken", "message": str(error)}))
    finally:
        os._exit(1)


def _settle(pod: Message, subnet: Subnet) -> None:
    socket.sethostname(pod["hostname"])
    linux.mount("", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    if os.path.isdir("/dev/shm"):
        linux.mount("shm", "/dev/shm", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=1777")
    for volume in pod.get("tmpfs", ()):
        linux.mount("tmpfs", volume["path"], "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, volume["options"])
    Mounter(pod["staging"]).volumes([*pod.get("mounts", ()), *_resolver(subnet)])
    _plug_in(pod["ip"], subnet)


def _resolver(subnet: Subnet) -> list[Message]:
    """The mount that points pods at another name server; a machine without /etc/resolv.conf has none to ask."""
    wanted = subnet.resolv and os.path.exists(RESOLV)
    return [{"source": subnet.resolv, "target": RESOLV}] if wanted else []


def _plug_in(ip: str, subnet: Subnet) -> None:
    with Netlink() as net:
        net.up("lo")
        index = net.up("eth0")
        net.address(index, ip, subnet.prefix)
        if subnet.open:
            net.default_route(index, subnet.gateway)
    with contextlib.suppress(OSError), open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "w") as file:
        file.write("0")
