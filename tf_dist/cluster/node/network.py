"""Addresses of pods: a name gets the same address again, so that a restarted replica is found where it was."""

from __future__ import annotations

import hashlib

_FIRST, _LAST = 2 << 8, 255 << 8  # 10.88.2.0 to 10.88.254.255: the rest is for the bridge and rehearsals


class Addresses:
    """Gives out addresses of 10.88.0.0/16, never two alike among the names it has seen."""

    def __init__(self, subnet: str = "10.88") -> None:
        self._subnet = subnet
        self._by_name: dict[str, str] = {}
        self._taken: dict[str, str] = {}

    def of(self, namespace: str, name: str) -> str:
        """The address of a pod."""
        key = f"{namespace}/{name}"
        known = self._by_name.get(key)
        return known or self.keep(namespace, name, self._free(key))

    def keep(self, namespace: str, name: str, address: str) -> str:
        """Note an address that a pod already has."""
        key = f"{namespace}/{name}"
        self._by_name[key] = address
        self._taken[address] = key
        return address

    def _free(self, key: str) -> str:
        start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
        span = _LAST - _FIRST
        if len(self._taken) >= span // 2:  # names of pods that are long gone
            self._by_name.clear()
            self._taken.clear()
        for step in range(span):
            number = _FIRST + (start + step) % span
            address = f"{self._subnet}.{number >> 8}.{number & 255}"
            if number & 255 not in (0, 255) and address not in self._taken:
                return address
        raise AssertionError("half of the addresses are free")
