"""Jobs whose present spec is invalid: what runs goes on, what never ran waits.

It got into the cluster past the checks (``kubectl apply`` on a cluster without them), so its status is where its owner
will look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from tf_dist.core.api.context import EmitEvent, Plan, WriteStatus
from tf_dist.core.api.fieldpath import list_items, mapping
from tf_dist.core.api.job import Document
from tf_dist.core.api.status import INVALID_SPEC, AcceptedSpec, RefusedSpec, Status, display_phase
from tf_dist.core.api.status_codec import FIELD, dump_status, stored_status
from tf_dist.core.api.timestamps import format_time, round_time
from tf_dist.core.reconciler.status_writer import SPEC_ACCEPTED, spec_condition

UNKNOWN_FIELDS: Final = "UnknownFields"
"""The reason of the event about keys of a stored spec that nothing reads."""


def with_accepted_spec(status: Status, accepted: AcceptedSpec | None, refused: RefusedSpec | None) -> Status:
    """The status with the accepted and the refused spec; unchanged if neither is known, or the job is over."""
    if status.finished or (accepted is None and refused is None):
        return status
    # The message of a refusal stays as long as the spec does: else drivers of two releases would exchange it for ever.
    same = status.refused is not None and status.refused == refused
    following = replace(status, accepted=accepted or status.accepted, refused=status.refused if same else refused)
    before = status.accepted
    if accepted is None or before is None or accepted.digest == before.digest or status.admission is not None:
        return following
    # What the cluster refused was another spec: the back-off ends.
    return replace(following, requeues=0, not_before=0.0)


def spec_events(before: Status, after: Status) -> Iterator[EmitEvent]:
    """The events about a spec: refused, once for each; accepted again; accepted with keys that nothing reads."""
    if after.accepted is not None and after.accepted != before.accepted and after.accepted.unknown:
        yield EmitEvent("Warning", UNKNOWN_FIELDS, f"nothing reads these fields of the spec: {after.accepted.unknown}")
    if after.refusal and after.refused != before.refused:
        yield EmitEvent("Warning", INVALID_SPEC, after.refusal)
    elif before.refusal and after.refused is None:
        yield EmitEvent("Normal", SPEC_ACCEPTED, "the spec is accepted again")


def plan_for_invalid_spec(document: Document, before: Status, refused: RefusedSpec, now: float) -> Plan:
    """The plan for a job without any valid spec: its status says so, and its pods are left as they are.

    It names no driver: one of another release may be able to parse the spec.
    """
    if before.finished or "deletionTimestamp" in mapping(document.get("metadata")):
        return Plan(before)
    now = round_time(now)
    after = with_accepted_spec(replace(before, since=now if before.since is None else before.since), None, refused)
    if after == before:
        return Plan(before)
    after = replace(after, reported=now)
    return Plan(after, (WriteStatus(_held(document, after, now)), *spec_events(before, after)))


def _held(document: Document, status: Status, now: float) -> dict[str, Any]:
    stored, spec = stored_status(document), mapping(document.get("spec"))
    shown = mapping(stored.get(FIELD))
    kept = {key: shown.get(key, "") for key in ("ready", "selector")}
    memory = {**dump_status(status), **kept, "state": display_phase(status), "why": status.display_reason}
    return {**stored, **_shown(document.get("kind"), spec, stored, status, now), FIELD: memory}


def _shown(kind: object, spec: Document, stored: Document, status: Status, now: float) -> dict[str, Any]:
    if kind == "Job":
        fresh = {"phase": status.phase.value, "lastTransitionTime": format_time(now)}
        return {
            "state": {
                **fresh,
                **mapping(stored.get("state")),
                "reason": status.display_reason,
                "message": status.display_message,
            }
        }
    if isinstance(spec.get("replicaSpecs"), list):
        return {
            "phase": "Creating",
            "state": "Running",
            "replicaStatuses": [],
            **stored,
            "reason": status.display_message,
        }
    listed = [dict(one) for one in list_items(stored.get("conditions")) if isinstance(one, Mapping)]
    before = next((one for one in listed if one.get("type") == SPEC_ACCEPTED), None)
    others = [one for one in listed if one.get("type") != SPEC_ACCEPTED]
    return {"replicaStatuses": {}, **stored, "conditions": [*spec_condition(status, before, now), *others]}
