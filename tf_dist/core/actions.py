"""What a pass wants done, as values: a driver executes them in order, ``tf-dist plan`` prints them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tf_dist.core.model import Document
from tf_dist.core.status import Status


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Replace the job's status. Comes first: what follows depends on its having been written."""

    status: Document


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object; that it exists already is as good, if it is the job's."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Update:
    """Give an object of the job other data (merge patch), or its ``subresource``.

    ``kind``: with the group where it is a gang scheduler's (``PodGroup.scheduling.volcano.sh``), as for ``Delete``.
    """

    kind: str
    name: str
    patch: dict[str, Any]
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete this very object (the uid fences it); that it is gone already is as good."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the job itself: its time to live is over."""


@dataclass(frozen=True, slots=True)
class Emit:
    """Tell people: a Kubernetes Event on the job. ``type`` is Normal or Warning."""

    type: str
    reason: str
    message: str


Action = WriteStatus | Create | Update | Delete | DeleteJob | Emit


@dataclass(frozen=True, slots=True)
class Plan:
    """The outcome of one pass: the status that holds now, what to do, and when to look again (epoch seconds)."""

    status: Status
    actions: tuple[Action, ...] = ()
    wake_at: float | None = None
