"""The API of a gang scheduler: its kinds, and what a cluster has of them at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tf_dist.core.model import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """A kind of object that a gang scheduler reads, and the versions of it that are understood, best first."""

    group: str
    kind: str
    plural: str
    versions: tuple[str, ...]
    namespaced: bool = True

    @property
    def key(self) -> str:
        """The kind as kubectl names it where there are several: ``PodGroup.scheduling.volcano.sh``."""
        return f"{self.kind}.{self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a cluster has of a gang scheduler's API at one moment.

    ``versions``: which version of each kind it serves, by ``Api.key``. ``missing``: why the scheduler cannot be used
    here, "" if it can. ``shared``: objects in no namespace, by (``Api.key``, name). ``priorities``: of PriorityClasses.
    ``supposed``: nobody has looked: whatever a job names is taken to be there.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""
    shared: Mapping[tuple[str, str], Document] = field(default_factory=dict)
    priorities: Mapping[str, int] = field(default_factory=dict)
    supposed: bool = False
