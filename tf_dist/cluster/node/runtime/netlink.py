"""Links, addresses and routes by rtnetlink: no ``ip`` program, no exec per pod."""

from __future__ import annotations

import os
import socket
import struct

_NEWLINK, _NEWADDR, _NEWROUTE = 16, 20, 24
_REQUEST, _ACK, _EXCL, _CREATE = 0x1, 0x4, 0x200, 0x400
_IFF_UP = 1
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_NET_NS_PID = 1, 3, 4, 10, 18, 19
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_OIF, _RTA_GATEWAY = 4, 5


def _attr(kind: int, payload: bytes) -> bytes:
    return struct.pack("HH", 4 + len(payload), kind) + payload + b"\0" * (-len(payload) % 4)


def _name(text: str) -> bytes:
    return _attr(_IFLA_IFNAME, text.encode() + b"\0")


def _mtu(size: int) -> bytes:
    return _attr(_IFLA_MTU, struct.pack("I", size))


def _link(index: int = 0, flags: int = 0, change: int = 0) -> bytes:
    return struct.pack("BBHiII", socket.AF_UNSPEC, 0, 0, index, flags, change)


class Netlink:
    """A conversation about the network namespace it was opened in; every refusal is an OSError."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)  # 0: NETLINK_ROUTE
        self._sequence = 0

    def __enter__(self) -> Netlink:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def bridge(self, name: str) -> int:
        """A new bridge, up; its index."""
        info = _attr(_INFO_KIND, b"bridge")
        self._ask(_NEWLINK, _link(0, _IFF_UP, _IFF_UP) + _name(name) + _attr(_IFLA_LINKINFO, info), "add bridge", True)
        return socket.if_nametoindex(name)

    def veth(self, name: str, bridge: int, *, peer: str, peer_pid: int, mac: bytes, mtu: int) -> None:
        """A cable from ``bridge`` into the network namespace of process ``peer_pid``, this end up."""
        other = _link() + _name(peer) + _attr(_IFLA_NET_NS_PID, struct.pack("I", peer_pid))
        other += _attr(_IFLA_ADDRESS, mac) + _mtu(mtu)
        info = _attr(_INFO_KIND, b"veth") + _attr(_INFO_DATA, _attr(_VETH_PEER, other))
        body = _name(name) + _mtu(mtu) + _attr(_IFLA_MASTER, struct.pack("I", bridge)) + _attr(_IFLA_LINKINFO, info)
        self._ask(_NEWLINK, _link(0, _IFF_UP, _IFF_UP) + body, f"add veth {name}", True)

    def up(self, name: str) -> int:
        """Switch a link on; its index."""
        index = socket.if_nametoindex(name)
        self._ask(_NEWLINK, _link(index, _IFF_UP, _IFF_UP), f"set {name} up")
        return index

    def enslave(self, name: str, bridge: int, *, mtu: int) -> None:
        """Plug a link into a bridge and switch it on."""
        head = _link(socket.if_nametoindex(name), _IFF_UP, _IFF_UP)
        self._ask(_NEWLINK, head + _mtu(mtu) + _attr(_IFLA_MASTER, struct.pack("I", bridge)), f"plug in {name}")

    def address(self, index: int, ip: str, prefix: int) -> None:
        """Give a link an IPv4 address."""
        raw = socket.inet_aton(ip)
        head = struct.pack("BBBBI", socket.AF_INET, prefix, 0, 0, index)
        self._ask(_NEWADDR, head + _attr(_IFA_LOCAL, raw) + _attr(_IFA_ADDRESS, raw), f"add address {ip}", True)

    def default_route(self, index: int, gateway: str) -> None:
        """Send everything else to ``gateway``."""
        head = struct.pack("BBBBBBBBI", socket.AF_INET, 0, 0, 0, 254, 3, 0, 1, 0)
        body = _attr(_RTA_GATEWAY, socket.inet_aton(gateway)) + _attr(_RTA_OIF, struct.pack("I", index))
        self._ask(_NEWROUTE, head + body, f"route by {gateway}", True)

    def _ask(self, kind: int, body: bytes, what: str, create: bool = False) -> None:
        self._sequence += 1
        flags = _REQUEST | _ACK | (_CREATE | _EXCL if create else 0)
        self._socket.send(struct.pack("IHHII", 16 + len(body), kind, flags, self._sequence, 0) + body)
        error = -struct.unpack_from("i", self._socket.recv(65536), 16)[0]
        if error:
            raise OSError(error, f"{what}: {os.strerror(error)}")
