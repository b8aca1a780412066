"""The memory of a job in a status whose definition prunes ``status.tfDist``.

Definitions that others installed keep only the fields of their own operators. There the memory goes, as JSON text, into
one of those: a condition of a TFJob, an entry of ``controlledResources`` of a Volcano Job. It never goes into metadata:
it says what a job was admitted to, and the right to write a job does not include its status subresource.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from tf_dist.core.model import Document
from tf_dist.core.untyped import items, mapping

FIELD: Final = "tfDist"
CONDITION: Final = "tf-dist.dev/Memory"
RESOURCE: Final = "tf-dist.dev/memory"


def carried(status: Document, kind: str) -> Document:
    """The status with its memory also in a field that another definition of ``kind`` keeps.

    A condition comes first, so that no printer column takes it for the state of the job.
    """
    text = json.dumps(status[FIELD], separators=(",", ":"))
    if kind == "Job":
        return {**status, "controlledResources": {**mapping(status.get("controlledResources")), RESOURCE: text}}
    condition = {"type": CONDITION, "status": "Unknown", "reason": "Stored", "message": text}
    return {**status, "conditions": [condition, *items(status.get("conditions"))]}


def carries(status: object) -> bool:
    """Whether a stored status has its memory in such a field only."""
    raw = mapping(status)
    return FIELD not in raw and _text(raw) is not None


def restored(status: object) -> Document:
    """A stored status with its memory in ``tfDist``, wherever it was; without it if there is none. Never raises."""
    raw = mapping(status)
    text = _text(raw)
    if text is None:
        return raw
    shown = _shown(raw)
    if FIELD in raw:
        return shown
    try:
        return {**shown, FIELD: json.loads(text)}
    except (ValueError, RecursionError):
        return shown


def _text(status: Mapping[str, Any]) -> str | None:
    found = mapping(status.get("controlledResources")).get(RESOURCE)
    for condition in items(status.get("conditions")):
        if mapping(condition).get("type") == CONDITION:
            found = condition.get("message")
    return found if isinstance(found, str) else None


def _shown(status: Mapping[str, Any]) -> dict[str, Any]:
    """What the status shows to people."""
    shown = dict(status)
    if "conditions" in status:
        shown["conditions"] = [c for c in items(status["conditions"]) if mapping(c).get("type") != CONDITION]
    resources = mapping(status.get("controlledResources"))
    if RESOURCE in resources:
        shown["controlledResources"] = {key: value for key, value in resources.items() if key != RESOURCE}
    return shown
