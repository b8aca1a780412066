"""The status of a document that cannot become a job: failed, for good, with every reason.

It got into the cluster past the checks (``kubectl apply`` on a cluster without them), so the status is the only place
where its owner will look.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tf_dist.core.conditions import failed_condition
from tf_dist.core.model import Document
from tf_dist.core.status import LIVE, Phase, Status, state_word
from tf_dist.core.status_codec import FIELD, dump_status, load_status, stored_status
from tf_dist.core.times import format_time, round_time
from tf_dist.errors import InvalidJob

REASON: Final = "InvalidTFJobSpec"
_MOST_CHARACTERS: Final = 1024


def invalid_status(document: Document, problem: InvalidJob, now: float) -> dict[str, Any] | None:
    """The status to store for ``document``; None when it is stored already or the job has ended or stopped."""
    before = load_status(stored_status(document))
    if before.phase not in LIVE:
        return None
    message = f"the spec is invalid: {'; '.join(map(str, problem.problems))}"[:_MOST_CHARACTERS]
    now = round_time(now)
    status = replace(before, created=before.created or now).to(Phase.FAILED, now, REASON, message)
    return {**_shown(document, status, now), FIELD: {**dump_status(status), "state": state_word(status), "ready": ""}}


def _shown(document: Document, status: Status, now: float) -> dict[str, Any]:
    if document.get("kind") == "Job":
        moment = format_time(now)
        return {"state": {"phase": "Failed", "reason": REASON, "message": status.message, "lastTransitionTime": moment}}
    if isinstance((document.get("spec") or {}).get("replicaSpecs"), list):
        return {"phase": "Failed", "state": "Failed", "reason": status.message, "replicaStatuses": []}
    condition = failed_condition(REASON, status.message, now)
    return {"conditions": [condition], "replicaStatuses": {}, "completionTime": format_time(now)}
