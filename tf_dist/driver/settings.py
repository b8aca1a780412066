"""What a driver may be told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """Settings of a driver.

    ``namespace``: drive the jobs of this one only (None: of all). ``resync``: seconds between two looks at everything,
    the bound on how long a lost watch event can delay. ``component``: the name in the events it writes.
    """

    namespace: str | None = None
    resync: float = 30.0
    component: str = "tf-dist"
