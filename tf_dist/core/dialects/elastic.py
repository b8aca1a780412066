"""How few and how many workers a job may have, in formats that have no field for it: annotations.

``tf-dist.dev/min-workers`` and ``tf-dist.dev/max-workers``. v1alpha1 says it with min-instance and max-instance, and a
Volcano task has a minAvailable of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tf_dist.core.dialects.problems import Findings, Loc
from tf_dist.core.dialects.shape import written_number
from tf_dist.core.model import MOST_REPLICAS
from tf_dist.core.names import MAX_WORKERS, MIN_WORKERS

_SHOWN: Final = 40


def bound(annotations: Mapping[str, str] | None, key: str) -> int | None:
    """The number an annotation says; None where it says none, or nonsense (which ``check_bounds`` tells)."""
    return written_number((annotations or {}).get(key, ""), 1, MOST_REPLICAS)


def place(key: str) -> Loc:
    """Where an annotation stands."""
    return ("metadata", "annotations", key)


def check_bounds(annotations: Mapping[str, str] | None, workers: int | None, where: str, out: Findings) -> None:
    """Errors for annotations that say no number, or bounds that ``workers`` is not within (None: the job has none)."""
    written = [key for key in (MIN_WORKERS, MAX_WORKERS) if key in (annotations or {})]
    for key in written:
        if bound(annotations, key) is None:
            found = (annotations or {})[key][:_SHOWN]
            out.error(place(key), f"{found!r} is no number of workers", f'write one from 1 up to {MOST_REPLICAS}: "2"')
    if out.partial or not written:
        return
    least, most = bound(annotations, MIN_WORKERS), bound(annotations, MAX_WORKERS)
    if workers is None:
        out.warn(place(written[0]), "bounds the workers, but there are none")
    elif least is not None and most is not None and least > most:
        out.error(place(MIN_WORKERS), f"is {least}, more than {MAX_WORKERS} {most}", "exchange the two")
    elif least is not None and workers < least:
        out.error(
            place(MIN_WORKERS), f"is {least}, but {where} is {workers}", f"write {workers} or less, or more replicas"
        )
    elif most is not None and workers > most:
        out.error(
            place(MAX_WORKERS), f"is {most}, but {where} is {workers}", f"write {workers} or more, or less replicas"
        )


def refuse(annotations: Mapping[str, str] | None, key: str, instead: str, out: Findings) -> None:
    """A warning that this format has a field for what an annotation says, and reads only that."""
    if key in (annotations or {}):
        out.warn(place(key), "is not used in this format", f"write {instead}")
