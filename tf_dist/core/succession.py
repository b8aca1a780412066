"""A task that is tried again: which job of its earlier tries it takes up, and which of them it must not repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Answer(StrEnum):
    """What a try does first."""

    CREATE = "create"
    ADOPT = "adopt"
    HARVEST = "harvest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A job that an earlier try of the same task made.

    ``doomed``: it is being deleted, or was given up. ``done``: it is over; ``succeeded``: and well. ``consumed``: a
    try has handed its result on already. ``created``: epoch seconds.
    """

    uid: str
    created: float
    doomed: bool = False
    done: bool = False
    succeeded: bool = False
    consumed: bool = False


@dataclass(frozen=True, slots=True)
class Succession:
    """``uid``: the job to adopt or to harvest; ``surplus``: those that live though only one may."""

    answer: Answer
    uid: str = ""
    surplus: tuple[str, ...] = ()


def choose(candidates: Sequence[Candidate], *, durable: bool = True) -> Succession:
    """What to do with what earlier tries left.

    A living job is adopted, the newest of several; else a result that nobody has had is taken; else there is a new job.
    Without ``durable`` a try always makes a new one. Of living jobs one stays.
    """
    newest = sorted(candidates, key=lambda one: (one.created, one.uid), reverse=True)
    living = [one.uid for one in newest if not one.done and not one.doomed]
    if not durable:
        return Succession(Answer.CREATE, surplus=tuple(living))
    if living:
        return Succession(Answer.ADOPT, living[0], tuple(living[1:]))
    ripe = (one.uid for one in newest if one.succeeded and not one.consumed and not one.doomed)
    return next((Succession(Answer.HARVEST, uid) for uid in ripe), Succession(Answer.CREATE))
