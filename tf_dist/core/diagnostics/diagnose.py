"""Diagnosis of a job: why it waits or failed, and what to do.

Categories are a contract for tools: new categories may be added, and existing categories are never renamed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tf_dist.core.diagnostics.log_end import log_evidence
from tf_dist.core.diagnostics.log_rules import Gpus, LogRule, known_failure, known_warnings
from tf_dist.core.gang.resources.pod_requests import add_resources, pod_requests
from tf_dist.core.model.assignment import replica_difference_text, waiting_text
from tf_dist.core.model.context import Observed, ReconcileContext
from tf_dist.core.model.fieldpath import list_items, mapping
from tf_dist.core.model.job import Document, Event, Job
from tf_dist.core.model.pods import Exit, PodPhase, PodView, disruption_counts, exit_text, signal_name
from tf_dist.core.model.quantity import format_quantity, parse_quantity
from tf_dist.core.model.reasons import OUT_OF_SERVICE, Category, Group, Level, Reason, Row, reason_row, stable_reason
from tf_dist.core.model.status import LIVE, STOPPED, Phase, Status
from tf_dist.core.model.status_codec import NewerStatusFormat, check_version
from tf_dist.core.model.timestamps import format_time
from tf_dist.core.model.wording import share_text, times_text
from tf_dist.core.reconciler.gang_rules import overdue_pods
from tf_dist.core.reconciler.job_context import read_context
from tf_dist.core.reconciler.job_objects import backoff_until, creatable_replicas
from tf_dist.errors import InvalidJob


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A finding: ``summary``: one line. ``detail``: evidence (log lines, messages). ``resolution``: what to do."""

    level: Level
    category: Category
    summary: str
    detail: str = ""
    resolution: str = ""


def _reason_diagnosis(row: Row, summary: str) -> Diagnosis:
    """A diagnosis from a reason's row in the registry, with this summary. A refusal may have more specific advice."""
    category = row.category or Category.FAILURE
    known = message_advice(summary) if category is Category.REFUSED else ""
    return Diagnosis(row.level, category, summary, resolution=known or row.advice)


_WHOLE_CLUSTER: Final = "even the empty cluster has "
_AMOUNT: Final = re.compile(r"([\w./-]+) ([\w.]+)(?=,| on \d)")


def _larger_node(job: Job, message: str) -> str:
    """The option with which this machine pretends to have the resources that the message names."""
    _, too_small, said = message.partition(_WHOLE_CLUSTER)
    there = dict(_AMOUNT.findall(said))  # empty if each pod fits alone, but not all pods together
    needed = add_resources(
        {name: value * spec.replicas for name, value in pod_requests(spec.pod_spec).items()}
        for spec in job.replica_specs
    )
    short = {
        name: value
        for name, value in sorted(needed.items())
        if too_small and name != "pods" and (not there or (name in there and value > parse_quantity(there[name])))
    }
    amounts = (
        f"{name}={-(-value // 2**20)}Mi" if name == "memory" else f"{name}={format_quantity(value, name)}"
        for name, value in short.items()
    )
    return f"; on this machine, to try it without: tf-dist run --node {','.join(amounts)}" if short else ""


def pending_reasons(job: Job, status: Status) -> Iterator[Diagnosis]:
    """Why a job waits for admission: first the current reason, then why it lost its admission."""
    waits = reason_row(status.reason)
    waits = waits if waits.group is Group.WAITING else Reason.WAITING_FOR_CAPACITY.row
    found = _reason_diagnosis(waits, status.message or "waits for admission")
    if waits is Reason.NEVER_FITS.row:
        advice = f"{found.resolution}{_larger_node(job, status.message)}"
        if "ResourceQuota" in status.message:
            advice = "ask for less or for fewer replicas, or have the ResourceQuota raised"
        found = replace(found, resolution=advice)
    yield found
    # The reason of the wait soon overwrites the reason of the lost admission in the status.
    failure = status.failure
    lost = reason_row(failure.event) if failure is not None and failure.event != status.reason else None
    if failure is not None and lost is not None and lost.group is Group.WAITING:
        yield _reason_diagnosis(lost, f"it {failure.message}" if failure.event == Reason.PREEMPTED else failure.message)


_NOT_FOUND: Final = re.compile(r'\b(configmap|secret|persistentvolumeclaim) "([^"]+)" not found', re.IGNORECASE)
_NO_KEY: Final = re.compile(r"couldn't find key (\S+) in (ConfigMap|Secret) (?:[^/\s]+/)?([^\s,;]+)")
_NO_KEY_IN_VOLUME: Final = re.compile(r"references non-existent (?:config|secret) key: (\S+)")
_KINDS: Final = {"configmap": "ConfigMap", "secret": "Secret", "persistentvolumeclaim": "PersistentVolumeClaim"}
_ATTACHED_ELSEWHERE: Final = "Multi-Attach error"
_POD_SECURITY: Final = "violates PodSecurity"
_RUNS_AS_ROOT: Final = "container has runAsNonRoot"  # and the image's user is root, or is not a number


def message_advice(message: str) -> str:
    """The advice for a pod that is refused or cannot start, by Kubernetes' message; "" for unknown messages."""
    if _POD_SECURITY in message or _RUNS_AS_ROOT in message:
        return (
            "add securityContext to the template: for the pods runAsNonRoot: true, runAsUser: 1000 and seccompProfile: "
            "{type: RuntimeDefault}, for the containers allowPrivilegeEscalation: false and capabilities: {drop: "
            "[ALL]}; docs/your-script.md has it as a file"
        )
    if found := _NOT_FOUND.search(message):
        kind = _KINDS[found[1].lower()]
        optional = "" if kind == "PersistentVolumeClaim" else ", or write optional: true in the template"
        return f"create the {kind} {found[2]} in the namespace of the job, or put it into the job's file{optional}"
    if found := _NO_KEY.search(message):
        return f"add the key {found[1]} to the {found[2]} {found[3]}, or correct the key in the template"
    if found := _NO_KEY_IN_VOLUME.search(message):
        return f"add the key {found[1]} to the ConfigMap or Secret of the volume, or correct items in the template"
    if _ATTACHED_ELSEWHERE in message:
        return (
            "another node has the volume: wait until its pod there is gone (kubectl get volumeattachments), or use a "
            "volume that several nodes may mount (ReadWriteMany)"
        )
    return ""


Logs = Mapping[str, Sequence[str]]
"""The last log lines that a client has read, by the names of replicas."""
_NO_LOGS: Final[Logs] = {}
VolumeEvents = Mapping[str, str]
"""The last message about a volume that cannot be mounted, by pod. Kubelets report these messages only in Events."""
_NO_EVENTS: Final[VolumeEvents] = {}
VOLUME_REASONS: Final = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
"""The reasons of these Events."""


def diagnose(
    job: Job,
    status: Status,
    pods: tuple[PodView, ...],
    now: float,
    logs: Logs = _NO_LOGS,
    volumes: VolumeEvents = _NO_EVENTS,
) -> tuple[Diagnosis, ...]:
    """The diagnoses of a job at the time ``now``, most important first; never empty.

    ``logs``: the ends of logs, in addition to those of failed containers in pods and in the status. ``volumes``: the
    messages of Events about volumes that cannot be mounted.
    """
    s = read_context(job, status, Observed(now=now, pods=pods))
    found: list[Diagnosis] = []
    if status.last_error:
        text = status.display_message if status.stalled else f"its objects cannot be deleted: {status.last_error}"
        found.append(_reason_diagnosis(Reason.RECONCILE_FAILED.row, text))
    if status.refusal:
        level = Level.ERROR if status.never_accepted else Level.WARNING
        advice = Reason.INVALID_SPEC.row.advice
        found.append(Diagnosis(level, Category.INVALID, status.refusal, resolution=advice))
    found += _of_end(status, logs) if status.phase not in LIVE else _of_life(s, logs, volumes)
    known = {one.resolution for one in found}
    found = found or [_all_well(s)]
    if status.phase in LIVE and status.disruptions:
        often = times_text(status.total_disruptions)
        text = f"its pods were taken away {often} ({disruption_counts(status.disruptions)})"
        found.append(Diagnosis(Level.INFO, Category.EVICTION, text, resolution="that does not count as a restart"))
    return (*found, *(one for one in diagnose_logs(job, logs) if one.resolution not in known))


def diagnose_logs(job: Job, logs: Logs) -> Iterator[Diagnosis]:
    """Warnings from log lines, independent of the outcome. Each warning is reported once, for its first replica."""
    said = set[str]()
    asking = {spec.type for spec in job.replica_specs if logs and "nvidia.com/gpu" in pod_requests(spec.pod_spec)}
    for replica, lines in logs.items():
        asks = replica.rpartition("-")[0] in asking
        for rule in known_warnings(lines, Gpus.ASKED if asks else Gpus.ANY if asking else Gpus.NOT_ASKED):
            if rule.summary not in said:
                said.add(rule.summary)
                category = Category(rule.category)
                yield Diagnosis(Level.WARNING, category, f"{replica} {rule.summary}", resolution=rule.resolution)


def diagnose_unreadable(problem: InvalidJob) -> Diagnosis:
    """The diagnosis of a job without a valid spec."""
    return Diagnosis(
        Level.ERROR, Category.INVALID, "the job's spec is invalid", str(problem), Reason.INVALID_SPEC.row.advice
    )


def diagnose_managed_elsewhere(manager: str) -> Diagnosis:
    """The diagnosis of a job that another controller manages."""
    summary = f"{manager} manages the job (spec.runPolicy.managedBy), so tf-dist does not run it"
    resolution = (
        "check that this controller runs in the cluster; managedBy cannot be changed: to run the job with tf-dist, "
        "delete it and submit it again without managedBy"
    )
    return Diagnosis(Level.INFO, Category.MANAGED_ELSEWHERE, summary, resolution=resolution)


def diagnose_deletion(stored: Document) -> tuple[Diagnosis, ...]:
    """The diagnosis of a raw job that is being deleted; empty for other jobs."""
    metadata = mapping(stored.get("metadata"))
    if "deletionTimestamp" not in metadata:
        return ()
    finalizers = ", ".join(map(str, list_items(metadata.get("finalizers"))))
    held = f"; it is kept by {finalizers} (metadata.finalizers)" if finalizers else ""
    resolution = "check that the controller that removes this finalizer runs" if finalizers else ""
    return (Diagnosis(Level.WARNING, Category.DELETING, f"the job is being deleted{held}", resolution=resolution),)


def diagnose_newer_format(stored: Document) -> tuple[Diagnosis, ...]:
    """The diagnosis of a raw status that a newer release wrote; empty for other statuses."""
    try:
        check_version(stored)
    except NewerStatusFormat as problem:
        return (Diagnosis(Level.ERROR, Category.NEWER_FORMAT, str(problem), resolution=problem.hint),)
    return ()


_REST_WAITS: Final = "more replicas start as capacity becomes free; gangs that have waited longer go first"


def _all_well(s: ReconcileContext) -> Diagnosis:
    job, status = s.job, s.status
    if status.phase is Phase.RUNNING:
        waiting = waiting_text(job, status)
        if len(job.replicas) < len(s.requested_job.replicas):
            waiting += f"; {replica_difference_text(s.requested_job, job)} until there is capacity for more"
        text = f"{share_text(s.facts.total().running, len(job.replicas))} running{waiting}"
        return Diagnosis(Level.INFO, Category.RUNNING, text, resolution=_REST_WAITS if waiting else "")
    return Diagnosis(Level.INFO, Category.STARTING, status.message or "the job has just been accepted")


def _of_end(status: Status, logs: Logs) -> Iterator[Diagnosis]:
    if status.phase in (Phase.COMPLETING, Phase.COMPLETED):
        yield Diagnosis(Level.INFO, Category.SUCCEEDED, status.message)
    elif status.reason == Reason.SUSPENDED:
        yield _reason_diagnosis(Reason.SUSPENDED.row, status.message)
    else:
        ended = _end(status, logs)
        again = Reason.SUSPENDED.row.advice if status.phase in STOPPED else ""
        yield replace(ended, resolution="; ".join(filter(None, (ended.resolution, again))))


def _end(status: Status, logs: Logs) -> Diagnosis:
    failure = status.failure
    exit_ = Exit(failure.code, failure.reason, failure.message) if failure else None
    said = _said(exit_, failure.replica if failure else "", logs)
    row = reason_row(status.reason)
    category, advice = (row.category, row.advice_at_end or row.advice) if row.category else _of_exit(exit_, said)
    if status.reason == Reason.BACKOFF_LIMIT_EXCEEDED and failure is not None:
        rule = _known_failure(exit_, said)
        advice = rule.resolution if rule else advice
        if failure.event == Event.TASK_COMPLETED:
            advice = "nothing failed: let the policy for TaskCompleted complete the job (CompleteJob), or remove it"
        elif failure.event == Reason.REPLICA_SUCCEEDED:
            advice = Reason.REPLICA_SUCCEEDED.row.advice
    return Diagnosis(Level.ERROR, category, status.message, _evidence(exit_, said), advice)


def _evidence(exit_: Exit | None, said: Sequence[str]) -> str:
    """The end of the log. For a pod that never ran, the summary has the message."""
    return "" if exit_ is not None and exit_.never_runs else log_evidence(said)


_START_FAILED: Final = frozenset({126, 127})
_SEGMENTATION: Final = 139
_KILLED: Final = 137
_TERMINATED: Final = 143


def _said(exit_: Exit | None, replica: str, logs: Logs) -> Sequence[str]:
    """The end of a replica's log: from the client, otherwise from the kubelet's termination message."""
    message = exit_.message.splitlines() if exit_ is not None else []
    return message if exit_ is None or exit_.start_failed else logs.get(replica) or message


def _known_failure(exit_: Exit | None, said: Sequence[str]) -> LogRule | None:
    """The rule for the failure. An error in the log of a program that a signal ended is not the reason of its end."""
    by_signal = exit_ is not None and (exit_.out_of_memory or bool(signal_name(exit_.code)))
    return None if by_signal else known_failure(said)


def _of_exit(exit_: Exit | None, said: Sequence[str]) -> tuple[Category, str]:
    if exit_ is None:
        return Category.FAILURE, "tf-dist logs shows what its replicas wrote"
    if (rule := _known_failure(exit_, said)) is not None:
        return Category(rule.category), rule.resolution
    if exit_.out_of_memory:
        return Category.MEMORY, "raise resources.limits.memory of the container, or use a smaller batch"
    if exit_.never_runs:
        row = reason_row(stable_reason(exit_.reason))
        return row.category or Category.STARTING, message_advice(exit_.message) or row.advice
    if exit_.start_failed or exit_.code in _START_FAILED:
        return Category.COMMAND, Reason.RUN_CONTAINER_ERROR.row.advice
    if exit_.code == _KILLED:
        return Category.FAILURE, "it was killed with SIGKILL, often by the kernel because of its memory"
    if exit_.code == _TERMINATED:
        return Category.EVICTION, "it was asked to stop: find out who deleted the pod or drained the node"
    if exit_.code == _SEGMENTATION:
        return Category.FAILURE, "it crashed in native code: try another TensorFlow build, or look for a core dump"
    name = signal_name(exit_.code)
    if name:
        return Category.FAILURE, f"it was killed by {name}"
    return Category.FAILURE, "" if said else "its log is empty: let the program print why it ends"


def _of_life(s: ReconcileContext, logs: Logs, volumes: VolumeEvents) -> Iterator[Diagnosis]:
    job, status, facts = s.job, s.status, s.facts
    if status.admission is None:
        yield from pending_reasons(job, status)
    elif not status.admission_holds:
        yield _reason_diagnosis(Reason.UNSCHEDULABLE.row, status.message)
    for pod in sorted(facts.current.values(), key=lambda pod: pod.replica):
        # With another gang scheduler, the gang may wait as pods without nodes, which is diagnosed above.
        if status.admission is not None or pod.has_node:
            yield from _of_pod(pod, s.now, logs, volumes.get(pod.name, ""))
        if pod.replica not in facts.succeeded:
            yield from _of_sidecar(job, pod)
    for pod in facts.stale:
        if pod.kept_by:
            text = f"pod {pod.name} has stopped and is kept by the finalizer {pod.kept_by}"
            text += "; its replica starts again when it is gone"
            advice = "the owner of a finalizer removes it: check that the owner runs"
            advice += "; kubectl get pod NAME -o yaml shows it"
            yield Diagnosis(Level.WARNING, Category.STOPPING, text, resolution=advice)
    stopping = sorted(pod.name for pod in facts.stale if not pod.kept_by)
    if stopping:
        names = ", ".join(stopping[:5])
        yield Diagnosis(
            Level.INFO,
            Category.STOPPING,
            f"waits until the pods of the previous attempt are gone: {names}",
            resolution="they get their grace period",
        )
    for pod in overdue_pods(s) if status.admission is not None else ():
        if pod.kept_by:
            continue  # its node is not the reason
        stopped = f" since {format_time(pod.stops_at)}" if pod.stops_at is not None else ""
        text = f"waits for pod {pod.name} on node {pod.node}, which should have stopped{stopped} and may still run"
        advice = f"check whether the node is up; if it is certainly down, delete it, or taint it {OUT_OF_SERVICE}"
        yield Diagnosis(Level.WARNING, Category.NODE_LOST, text, resolution=advice)
    if status.admission is not None:
        yield from _of_missing(s)


_STARTING: Final = ("", "ContainerCreating", "PodInitializing")
# Seconds after which a pod that no scheduler has processed counts as ignored by all schedulers.
_SCHEDULER_SILENCE: Final = 30.0


# Seconds that a pod may wait for objects that are created together with its job.
_CREATED_TOGETHER: Final = 10.0


def _of_pod(pod: PodView, now: float, logs: Logs, volume: str) -> Iterator[Diagnosis]:
    who = str(pod.replica)
    if pod.phase is PodPhase.FAILED:
        said = _said(pod.exit, who, logs)
        category, advice = _of_exit(pod.exit, said)
        yield Diagnosis(Level.ERROR, category, f"{who} {exit_text(pod.exit)}", _evidence(pod.exit, said), advice)
    elif pod.unschedulable:
        advice = "the cluster's scheduler finds no node: see resources, node selector, affinity, taints, cordoned nodes"
        yield Diagnosis(Level.WARNING, Category.UNSCHEDULABLE, f"{who} cannot be scheduled", pod.unschedulable, advice)
    elif pod.scheduler_name and pod.created_at is not None and now - pod.created_at >= _SCHEDULER_SILENCE:
        text = f"no scheduler has looked at {who} yet: its schedulerName is {pod.scheduler_name}"
        advice = "check that a scheduler of this name runs in the cluster, or remove schedulerName from the template"
        yield Diagnosis(Level.WARNING, Category.UNSCHEDULABLE, text, resolution=advice)
    elif pod.waiting is not None and pod.waiting[0] not in _STARTING:
        yield _waiting(pod, *pod.waiting)
    elif (
        pod.phase is PodPhase.PENDING
        and (why := volume or (pod.waiting[1] if pod.waiting else ""))
        and (pod.created_at is None or now - pod.created_at >= _CREATED_TOGETHER)
    ):
        advice = message_advice(why) or f"see the events of the volume: kubectl describe pod {pod.name}"
        yield Diagnosis(Level.WARNING, Category.CONFIGURATION, f"{who} waits for a volume", why, advice)
    elif pod.node_silent and not pod.deleting:
        advice = (
            f"see kubectl describe node {pod.node}: its pods continue when it reports again; otherwise they "
            "are replaced"
        )
        text = f"{who} is on node {pod.node}, which is not ready: it may still run"
        yield Diagnosis(Level.WARNING, Category.NODE_LOST, text, resolution=advice)
    elif pod.phase is PodPhase.PENDING:
        yield Diagnosis(Level.INFO, Category.STARTING, f"{who} is starting{f' on {pod.node}' if pod.node else ''}")


def _of_sidecar(job: Job, pod: PodView) -> Iterator[Diagnosis]:
    """A warning about a pod that other containers keep running, because TFJob v1 and Volcano evaluate its phase."""
    spec = job.spec(pod.replica.type)
    if not pod.sidecar_runs or pod.exit is None or pod.deleting or spec is None:
        return
    again = spec.pod_restart_policy == "Always" or (spec.pod_restart_policy == "OnFailure" and pod.exit.code != 0)
    if not again:
        text = f"the container of {pod.replica} that trains {exit_text(pod.exit)}, but others keep its pod running"
        advice = (
            "have the sidecar end with it, or make it an init container with restartPolicy: Always; Istio: the label "
            'sidecar.istio.io/inject: "false" in the template'
        )
        yield Diagnosis(Level.WARNING, Category.RUNNING, text, resolution=advice)


def _waiting(pod: PodView, reason: str, message: str) -> Diagnosis:
    row = reason_row(stable_reason(reason))
    category, advice = row.category or Category.STARTING, message_advice(message) or row.advice
    # Nodes differ in the images that they have, and in the registries that they can reach.
    evidence = f"on node {pod.node}: {message}" if category is Category.IMAGE and pod.node else message
    if reason == Reason.CRASH_LOOP_BACK_OFF and pod.last_exit is not None:
        said = pod.last_exit.message.splitlines()
        if pod.last_exit.start_failed or _known_failure(pod.last_exit, said):
            category, advice = _of_exit(pod.last_exit, said)
        elif pod.last_exit.code == 0:
            advice = Reason.REPLICA_SUCCEEDED.row.advice
        often = f", {pod.ends} times" if pod.ends > 1 else ""
        evidence = f"it {exit_text(pod.last_exit)}{often}; {message}\n{log_evidence(said)}".strip()
    return Diagnosis(Level.WARNING, category, f"{pod.replica} waits: {stable_reason(reason)}", evidence, advice)


def _of_missing(s: ReconcileContext) -> Iterator[Diagnosis]:
    due = creatable_replicas(s)
    for replica in s.job.replicas:
        if replica in s.facts.current or replica in s.facts.succeeded or replica in due:
            continue
        wait = backoff_until(s.status, replica) - s.now
        spec = s.job.spec(replica.type)
        if wait > 0:
            yield Diagnosis(Level.INFO, Category.BACKOFF, f"{replica} is restarted in {wait:.0f} s", s.status.message)
        elif spec is not None and spec.depends is not None and not s.facts.stale:
            others = (" or " if spec.depends.any else " and ").join(spec.depends.on)
            yield Diagnosis(Level.INFO, Category.DEPENDENCY, f"{replica} waits until {others} is up (dependsOn)")
