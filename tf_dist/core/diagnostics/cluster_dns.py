"""The time for which CoreDNS caches negative answers about names of the cluster, from its Corefile.

The name of a headless Service does not resolve until its pod has an address. If a replica resolves a peer earlier, it
gets the cached negative answer for this time (docs/decisions/names-before-addresses.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

# Defaults of CoreDNS, in seconds: ``ttl`` of the plugin kubernetes, and the limit of negative answers in the cache.
_TTL: Final = 5.0
_LONGEST: Final = 1800.0


@dataclass(frozen=True, slots=True)
class _Directive:
    """A line of a Corefile: its first word, its other words, and the lines of its block."""

    name: str
    arguments: tuple[str, ...]
    block: tuple[_Directive, ...] = ()

    def find(self, name: str, first: str = "") -> _Directive | None:
        """The line of the block with this name and, if given, this first argument."""
        return next(
            (one for one in self.block if one.name == name and (not first or one.arguments[:1] == (first,))), None
        )


def denial_seconds(corefile: str) -> float:
    """The seconds for which negative answers about names of Services are cached (0: not cached)."""
    return max((_denial(server) for server in _directives(iter(corefile.splitlines()))), default=0.0)


def _directives(lines: Iterator[str]) -> tuple[_Directive, ...]:
    found: list[_Directive] = []
    for line in lines:
        words = line.partition("#")[0].split()
        if words == ["}"]:
            break
        if words:
            opens = words[-1] == "{"
            block = _directives(lines) if opens else ()
            words = words[:-1] if opens else words
            found.append(_Directive(words[0] if words else "", tuple(words[1:]), block))
    return tuple(found)


def _denial(server: _Directive) -> float:
    """The seconds of a server block: the TTL of the zone, up to the limit of the cache."""
    kubernetes, cache = server.find("kubernetes"), server.find("cache")
    if kubernetes is None or cache is None:
        return 0.0
    domains = tuple(zone for zone in kubernetes.arguments if not zone.rstrip(".").endswith(".arpa"))
    words = list(cache.arguments)
    longest = float(words.pop(0)) if words and words[0].isdecimal() else _LONGEST
    disabled, denial = cache.find("disable", "denial"), cache.find("denial")
    if not _covers(words, domains) or (disabled is not None and _covers(disabled.arguments[1:], domains)):
        return 0.0
    if denial is not None and len(denial.arguments) > 1 and denial.arguments[1].isdecimal():
        longest = float(denial.arguments[1])
    ttl = kubernetes.find("ttl")
    stated = float(ttl.arguments[0]) if ttl is not None and ttl.arguments[:1] and ttl.arguments[0].isdecimal() else _TTL
    return min(longest, stated)


def _covers(zones: list[str] | tuple[str, ...], domains: tuple[str, ...]) -> bool:
    """Whether zones contain the domain of the cluster. An empty list contains all domains."""
    stated = [zone.strip(".") for zone in zones]
    return not stated or any(
        not zone or f".{domain.strip('.')}".endswith(f".{zone}") for zone in stated for domain in domains
    )
