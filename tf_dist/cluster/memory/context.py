"""What the parts of an embedded cluster share."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tf_dist.cluster.api import Object
from tf_dist.cluster.memory.objects import Clock, timestamp
from tf_dist.cluster.memory.resources import Kind, Registry
from tf_dist.cluster.memory.store import Store
from tf_dist.cluster.refusals import Invalid
from tf_dist.errors import Problem

Validator = Callable[[Object], Object]


@dataclass(frozen=True, slots=True)
class Context:
    """The store, the kinds, and the sources of time, identity and chance."""

    store: Store
    registry: Registry
    clock: Clock
    uids: Callable[[], str]
    dice: random.Random
    validators: Mapping[tuple[str, str], Validator]

    def now(self) -> str:
        """The time as objects carry it."""
        return timestamp(self.clock())


def refuse(kind: Kind, obj: Object, problems: Iterator[Problem]) -> None:
    """Raise Invalid if there is any problem."""
    found = tuple(problems)
    if found:
        raise Invalid(subject(kind, obj), found)


def subject(kind: Kind, obj: Object) -> str:
    """``Pod "x"``: what an Invalid is about."""
    return f'{kind.shown} "{obj["metadata"].get("name", "")}"'
