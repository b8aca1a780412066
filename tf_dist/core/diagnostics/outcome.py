"""Outcome of a job: how it ended.

One vocabulary for every face: the XCom ``outcome`` and ``error.outcome`` in Airflow, the outputs of a step in Argo,
``tf-dist wait -o json``, ``status.tfDist.outcome``. How a job ended follows from its status alone, so that it can be
told at any time afterwards; a client adds what it has seen: metrics, the checkpoint, the end of a log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Self

from tf_dist.core.diagnostics.metrics_parser import Progress
from tf_dist.core.model.reasons import DISRUPTED, OutcomeKind, Reason
from tf_dist.core.model.status import (
    STOPPED,
    Status,
    display_phase,
    disruptions,
    ending_failure,
    outcome_kind,
    outcome_reason,
    preemptions,
)
from tf_dist.core.model.usage import NO_USAGE
from tf_dist.errors import AdmissionTimeout, ImagePullFailed, JobEvicted, JobFailed, JobOutcomeError, JobTimeout

_LOG_LIMIT: Final = 4096  # characters: it goes into databases and into objects of a workflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended, or why a client stopped waiting for it, with all that a next task may want to know.

    ``reason``: in one word, as the job's status has it; ``replica``, ``exit_code``: of the failure that ended it;
    ``disruptions``: pods that were disrupted; ``preemptions``: how often it, or a pod of it, was preempted by a job of
    a higher priority; ``waited_seconds``: all time in which it waited for admission, and then for nodes;
    ``ran_seconds``: from when it last had both to the end. ``gpu_seconds``, ``replica_seconds``: the time for which it
    held GPUs and replicas, added up over these. ``lost_gpu_seconds``, ``lost_replica_seconds``: training since the last
    checkpoint that was seen, or since the start, that restarts, evictions, preemptions or its end lost. ``goodput``:
    the share of the time held in which it trained and kept the result, from 0 to 1, of its GPUs if it has any; None: it
    held nothing. ``fallback``: which of its fallbacks it ran as (1, 2, …; 0: as its document says, or it never ran).
    ``log``: the end of the log of ``replica``.
    """

    kind: OutcomeKind
    reason: str = ""
    message: str = ""
    replica: str = ""
    exit_code: int | None = None
    restarts: int = 0
    disruptions: int = 0
    preemptions: int = 0
    fallback: int = 0
    waited_seconds: float | None = None
    ran_seconds: float | None = None
    gpu_seconds: float = 0.0
    lost_gpu_seconds: float = 0.0
    replica_seconds: float = 0.0
    lost_replica_seconds: float = 0.0
    goodput: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    checkpoint: str = ""
    log: str = ""

    def document(self) -> dict[str, Any]:
        """As plain JSON; ``nan`` and ``inf``, which are not numbers there, as texts. ``read_outcome`` reads it back."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        metrics = {name: value if math.isfinite(value) else str(value) for name, value in self.metrics.items()}
        return {**plain, "kind": self.kind.value, "metrics": metrics}

    @classmethod
    def of(
        cls,
        status: Status,
        kind: OutcomeKind,
        *,
        reason: str = "",
        message: str = "",
        replica: str = "",
        now: float | None = None,
    ) -> Self:
        """An outcome with what a status knows. ``now``: the end, where the job itself has none."""
        failure = ending_failure(status) if outcome_kind(status) is kind else None
        begun, ended = status.start_time, now if status.completion_time is None else status.completion_time
        waited = _between(status.created, ended if begun is None else begun)
        usage = status.usage if ended is None else status.usage.until(ended)
        return cls(
            kind=kind,
            reason=str(reason) or outcome_reason(status),
            message=message or status.display_message,
            replica=failure.replica if failure else replica,
            exit_code=failure.code if failure else None,
            restarts=status.total_restarts,
            disruptions=disruptions(status),
            preemptions=preemptions(status),
            fallback=status.fallback,
            # Another controller's job has no usage.
            waited_seconds=waited if usage == NO_USAGE else usage.waited,
            ran_seconds=_between(begun, ended),
            gpu_seconds=usage.gpus.held,
            lost_gpu_seconds=min(usage.gpus.lost, usage.gpus.held),  # kubelets tell times in whole seconds
            replica_seconds=usage.replicas.held,
            lost_replica_seconds=min(usage.replicas.lost, usage.replicas.held),
            goodput=usage.goodput,
            log=failure.message[-_LOG_LIMIT:] if failure is not None and failure.code is not None else "",
        )


def job_outcome(status: Status) -> Outcome | None:
    """How the job ended, or was stopped; None while it goes on."""
    kind = outcome_kind(status)
    # A job that a policy aborted, or that was suspended, has no completion time: it ended when it was stopped.
    return None if kind is None else Outcome.of(status, kind, now=status.since)


def outcome_word(status: Status) -> str:
    """How the job ended in a word for people, while its last pods are stopping, too; else its state."""
    kind = outcome_kind(status)
    if kind in DISRUPTED:
        return "Evicted"
    if kind is OutcomeKind.SUCCEEDED:
        return "Succeeded"
    return display_phase(status) if kind is None or status.phase in STOPPED else "Failed"


def read_outcome(document: object) -> Outcome | None:
    """The outcome of a document that this or another release wrote; None for what is none. Never raises.

    A kind that a later release has added is ``unknown`` here, and its fields are left out.
    """
    if not isinstance(document, Mapping):
        return None
    kind = next((one for one in OutcomeKind if one == document.get("kind")), OutcomeKind.UNKNOWN)
    known = {one.name: document[one.name] for one in fields(Outcome) if one.name in document}
    metrics = known.get("metrics")
    numbers = {name: _number(value) for name, value in metrics.items()} if isinstance(metrics, Mapping) else {}
    return Outcome(**{**known, "kind": kind, "metrics": numbers})


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return math.nan


def _between(since: float | None, until: float | None) -> float | None:
    return None if since is None or until is None else round(max(0.0, until - since), 3)


def with_observations(outcome: Outcome, progress: Progress, log: str = "") -> Outcome:
    """The outcome with what a client has seen in the replicas' logs."""
    text = log[-_LOG_LIMIT:] or outcome.log
    return replace(outcome, metrics=dict(progress.metrics), checkpoint=progress.checkpoint, log=text)


# By kind and whether the job itself ended so; what is not listed is a JobFailed.
_ERRORS: Final[Mapping[tuple[OutcomeKind, bool], type[JobOutcomeError]]] = {
    (OutcomeKind.EVICTED, True): JobEvicted,
    (OutcomeKind.PREEMPTED, True): JobEvicted,
    (OutcomeKind.IMAGE_PULL_FAILED, True): ImagePullFailed,
    (OutcomeKind.IMAGE_PULL_FAILED, False): ImagePullFailed,
    (OutcomeKind.DEADLINE_EXCEEDED, False): JobTimeout,
    (OutcomeKind.START_TIMEOUT, False): JobTimeout,
    (OutcomeKind.ADMISSION_TIMEOUT, False): AdmissionTimeout,
}


def outcome_error(outcome: Outcome, message: str, *, hint: str = "", decided: bool = True) -> JobOutcomeError:
    """The error that an outcome means. ``decided``: the job itself ended so; else a limit of the client was passed."""
    return _ERRORS.get((outcome.kind, decided), JobFailed)(message, hint=hint, outcome=outcome)


def is_suspended(status: Status) -> bool:
    """Whether a stopped job was suspended, and can be resumed, rather than aborted by a policy."""
    return status.reason == Reason.SUSPENDED
