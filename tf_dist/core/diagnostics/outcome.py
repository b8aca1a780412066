"""The outcome of a job: how it ended.

All interfaces use the same vocabulary: the XCom ``outcome`` and ``error.outcome`` in Airflow, the outputs of a step in
Argo, ``tf-dist wait -o json``, and ``status.tfDist.outcome``. The outcome is derived from the status alone, so it is
available at any later time. A client adds metrics, the checkpoint and the end of a log.
"""

from __future__ import annotations

import math
import re
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

_LOG_LIMIT: Final = 4096  # characters, because the log is stored in databases and in objects of a workflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended, or why a client stopped waiting for it, with the facts for a next task.

    ``reason``: the reason in the job's status. ``replica``, ``exit_code``: the replica that ended the job by its
    failure, and its exit code. ``disruptions``: the number of disrupted pods. ``preemptions``: how many times jobs of
    higher priority preempted the job or one of its pods. ``waited_seconds``: the total wait for admission, and then for
    nodes. ``ran_seconds``: the time from the start of the last run to its end. ``gpu_seconds``, ``replica_seconds``:
    the time for which the job held GPUs and replicas, multiplied by their number.
    ``lost_gpu_seconds``, ``lost_replica_seconds``: training since the last known checkpoint, or since the start, that
    was lost by restarts, evictions, preemptions or the end. ``goodput``: the share of the held time with training that
    was not lost, from 0 to 1; of GPUs if the job held GPUs (None: it held nothing). ``fallback``: the fallback that ran
    (1, 2, …; 0: the document itself, or the job never ran). ``log``: the end of the log of ``replica``.
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
        """The outcome as plain JSON, with ``nan`` and ``inf`` as texts. ``read_outcome`` reads it."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        return dict(storable({**plain, "kind": self.kind.value, "metrics": dict(self.metrics)}))

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
        """An outcome with the facts of a status. ``now`` is the end of a job without an end time."""
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
            lost_gpu_seconds=min(usage.gpus.lost, usage.gpus.held),  # kubelets report times in whole seconds
            replica_seconds=usage.replicas.held,
            lost_replica_seconds=min(usage.replicas.lost, usage.replicas.held),
            goodput=usage.goodput,
            log=failure.message[-_LOG_LIMIT:] if failure is not None and failure.code is not None else "",
        )


_UNSTORABLE: Final = re.compile(r"[\x00\ud800-\udfff]")


def storable(value: Any) -> Any:
    """A JSON value that every database can store, and that processes can send to each other.

    ``nan``, ``inf`` and whole numbers of more than 64 bits become texts. PostgreSQL refuses NUL and halves of
    characters, which programs write, and Airflow's processes cannot send longer numbers.
    """
    if isinstance(value, dict):
        return {storable(key): storable(one) for key, one in value.items()}
    if isinstance(value, list):
        return [storable(one) for one in value]
    if isinstance(value, str):
        return _UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # JSON has no nan and inf
    return str(value) if isinstance(value, int) and not -(2**63) <= value < 2**64 else value


def job_outcome(status: Status) -> Outcome | None:
    """How the job ended or was stopped; None while it continues."""
    kind = outcome_kind(status)
    # A job that a policy aborted, or that was suspended, has no completion time: it ended when it was stopped.
    return None if kind is None else Outcome.of(status, kind, now=status.since)


def outcome_word(status: Status) -> str:
    """How the job ended, as a word for display, also while its last pods stop; the state of a job that continues."""
    kind = outcome_kind(status)
    if kind in DISRUPTED:
        return "Evicted"
    if kind is OutcomeKind.SUCCEEDED:
        return "Succeeded"
    return display_phase(status) if kind is None or status.phase in STOPPED else "Failed"


def read_outcome(document: object) -> Outcome | None:
    """The outcome in a document of this or another release; None for other values. Never raises.

    Kinds of later releases are read as ``unknown``, and fields of later releases are ignored.
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
    """The outcome with facts from the replicas' logs."""
    text = log[-_LOG_LIMIT:] or outcome.log
    return replace(outcome, metrics=dict(progress.metrics), checkpoint=progress.checkpoint, log=text)


# By kind, and whether the job itself ended with the outcome. The default is JobFailed.
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
    """The error of an outcome. ``decided``: the job itself ended; otherwise, a limit of the client was exceeded."""
    return _ERRORS.get((outcome.kind, decided), JobFailed)(message, hint=hint, outcome=outcome)


def is_suspended(status: Status) -> bool:
    """Whether a stopped job was suspended and can be resumed, in contrast to a job that a policy aborted."""
    return status.reason == Reason.SUSPENDED
