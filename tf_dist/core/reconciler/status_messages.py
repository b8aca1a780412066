"""Sentences about a job, its pods and their events, for the message of its status."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from tf_dist.core.model.assignment import current_job, fallback_job, replica_difference_text, startable_replicas
from tf_dist.core.model.credentials import hide_credentials
from tf_dist.core.model.job import Event, Job
from tf_dist.core.model.pods import Exit, PodView
from tf_dist.core.model.reasons import HOLDING_REASONS, Reason
from tf_dist.core.model.status import Admission, Status
from tf_dist.core.model.wording import MAX_LISTED, are, join_names, share_text
from tf_dist.core.reconciler.pod_classification import PodEvent


def fallback_text(job: Job, number: int) -> str:
    """``fallback 1 of 2 (4 worker instead of 8, queue spot)``: the fallback and its differences."""
    other = fallback_job(job, number)
    pairs = zip(job.replica_specs, other.replica_specs, strict=True)
    parts = [replica_difference_text(job, other)]
    if other.scheduling.queue != job.scheduling.queue:
        parts.append(f"queue {other.scheduling.queue or 'default'}")
    if any(one.template != two.template for one, two in pairs):
        parts.append("other pods")
    return f"fallback {number} of {len(job.fallbacks)} ({', '.join(filter(None, parts))})"


def waiting_replicas(job: Job, status: Status) -> int:
    """The number of replicas of an admitted job that wait for capacity, after the others have started."""
    return len(job.replicas) - len(startable_replicas(job, status))


def waiting_text(job: Job, status: Status) -> str:
    """``; 2 more wait for capacity``, if any replicas do. ``job`` has its admitted size."""
    waiting = waiting_replicas(job, status)
    return f"; {waiting} more {are(waiting, 'waits', 'wait')} for capacity" if waiting else ""


BY_QUOTA_ALONE: Final = ", by quota alone; the scheduler may still hold pods back"


def admitted_text(job: Job, status: Status) -> str:
    """The message of a new admission: the number of replicas, and, if nodes are not visible, that quota alone
    decided.
    """
    return _places_text(job, status) + (BY_QUOTA_ALONE if _admitted_unseen(status.admission) else "")


def _admitted_unseen(admission: Admission | None) -> bool:
    """Whether a controller without visible nodes has admitted the gang, and the scheduler has not found all
    nodes since.
    """
    return admission is not None and not admission.placement and not admission.by and admission.complete is None


def _places_text(job: Job, status: Status) -> str:
    sized = current_job(job, status)
    smaller = replica_difference_text(job, sized)
    waiting = waiting_replicas(sized, status)
    if not waiting:
        count = len(sized.replicas)
        whole = "the replica is admitted" if count == 1 else f"all {count} replicas are admitted"
        return f"begins with {smaller}" if smaller else whole
    text = f"{share_text(len(sized.replicas) - waiting, len(sized.replicas))} admitted"
    return text + waiting_text(sized, status) + (f"; begins with {smaller}" if smaller else "")


_SIGNAL_BASE: Final = 128


def signal_name(code: int | None) -> str:
    """The signal of an exit code of 128+n (or -n), "" for none."""
    number = 0 if code is None else code - _SIGNAL_BASE if code > _SIGNAL_BASE else -code
    return signal.Signals(number).name if number in {*signal.Signals} else ""


def exit_text(exit_: Exit | None) -> str:
    """``exited with code 137 (SIGKILL)``; out of memory and unknown ends have texts of their own.

    If a container other than the training one failed, it is named.
    """
    if exit_ is not None and exit_.container:
        return f"has failed: its {exit_.container} {exit_text(replace(exit_, container=''))}"
    if exit_ is not None and exit_.beside is not None:
        name, other = exit_.beside
        return f"has failed: its container {name} {exit_text(other)}, its container that trains with code {exit_.code}"
    if exit_ is None or (exit_.code is None and not exit_.reason):
        return "failed without an exit code"
    if exit_.out_of_memory:
        return f"ran out of memory (OOMKilled, code {exit_.code})"
    if exit_.never_runs:
        return ": ".join(
            filter(None, ("cannot start", exit_.reason, hide_credentials(exit_.message)[:_LONGEST_DETAIL]))
        )
    if exit_.code is None:
        return f"failed: {exit_.reason}"
    name = signal_name(exit_.code)
    special = exit_.reason if exit_.reason not in ("", "Error", "Completed") else ""
    detail = ", ".join(part for part in (name, special) if part)
    return f"exited with code {exit_.code}" + (f" ({detail})" if detail else "")


def held_text(pods: Sequence[PodView]) -> str:
    """``ps-0 waits: CrashLoopBackOff``; of several pods, the reason of the first, with all pods that have the same."""
    reason = pods[0].held_by
    alike = [pod.replica for pod in pods if pod.held_by == reason]
    what = _what_holds(pods[0])
    return f"{join_names(alike)} {'waits' if len(alike) == 1 else 'wait'}: {reason}" + (f" ({what})" if what else "")


# Their messages name an object and stay the same for as long as the container waits.
_NAMING: Final = frozenset(one for one in HOLDING_REASONS if one.row.permanent) - {Reason.CREATE_CONTAINER_ERROR}
_IMAGE: Final = re.compile(r'\bimage \\?"(?:docker\.io/(?:library/)?)?([^"\\]+?)(?::latest)?\\?"')
_LONGEST_DETAIL: Final = 300


def _what_holds(pod: PodView) -> str:
    """The Secret, key or image that a pod lacks, if its kubelet names it.

    For an image only the name, because the kubelet's messages alternate, and each would change the status.
    """
    message = pod.waiting[1] if pod.waiting else ""
    if pod.held_by in _NAMING:
        return hide_credentials(message)[:_LONGEST_DETAIL]
    found = _IMAGE.search(message) if pod.held_by == Reason.IMAGE_PULL_BACK_OFF else None
    return f'image "{found[1][:_LONGEST_DETAIL]}"' if found else ""


def describe_event(job: Job, occurrence: PodEvent) -> str:
    """One sentence about an occurrence, without a full stop."""
    who = str(occurrence.replica) if occurrence.replica else occurrence.spec.name
    match occurrence.event:
        case Event.POD_FAILED:
            return f"{who} {exit_text(occurrence.exit)}"
        case Event.POD_EVICTED:
            if occurrence.disruption is not None:
                return f"{who} {occurrence.disruption}"
            said = (
                ": ".join(filter(None, (exit_.reason, hide_credentials(exit_.message))))
                if (exit_ := occurrence.exit)
                else ""
            )
            return f"{who} was evicted" + (f" ({said})" if said else "")
        case Event.NODE_LOST:
            return f"{who} {occurrence.disruption or 'is lost with its node'}"
        case Event.POD_PENDING:
            return f"{who} has been pending for longer than its policy allows"
        case Event.TASK_COMPLETED:
            count = occurrence.spec.replicas
            return f"all {count} {who} replicas succeeded" if count > 1 else f"the {who} replica succeeded"
        case Event.TASK_FAILED:
            return f"the containers of {who} were restarted too often (maxRetry={occurrence.spec.container_restarts})"
        case Event.UNKNOWN:
            return f"{who} cannot be scheduled while other replicas of {job.key.name} run"


def describe_events(job: Job, occurrences: Iterable[PodEvent]) -> str:
    """The first few of several occurrences, and the number of others."""
    sentences = [describe_event(job, occurrence) for occurrence in occurrences]
    more = len(sentences) - MAX_LISTED
    return "; ".join(sentences[:MAX_LISTED]) + (f"; and {more} more" if more > 0 else "")
