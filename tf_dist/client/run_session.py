"""One run of a job, on this machine or on a cluster, and its result."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from tf_dist.client.connection import Connection
from tf_dist.client.job_display import show_warnings
from tf_dist.client.job_files import InvalidFiles, LoadedJob
from tf_dist.client.log_follower import ContainerInstance, LogOpener, log_opener
from tf_dist.client.monitor import Ending, JobSnapshot, JobView, WatchingJobInformer, monitoring
from tf_dist.client.session_host import SessionHost
from tf_dist.client.stored_jobs import StoredJob, leader_problems, now
from tf_dist.client.submission import (
    TargetNamespaces,
    code_archive,
    companion_owner,
    create_companion,
    create_job,
    file_folder,
    with_code_on_this_machine,
)
from tf_dist.client.yaml_files import FileProblem, YamlDocument
from tf_dist.cluster.api import NAMESPACES, Cluster, LogOptions, Object, Stream
from tf_dist.cluster.signals import Signals
from tf_dist.core.diagnostics.diagnose import Diagnosis, diagnose
from tf_dist.core.diagnostics.display_text import format_duration, format_number, table_html, usage_text
from tf_dist.core.diagnostics.outcome import Outcome, outcome_error, outcome_word
from tf_dist.core.model.job import JobKey
from tf_dist.core.model.reasons import OutcomeKind
from tf_dist.core.model.status import LIVE
from tf_dist.core.pipeline.adoption import DriverChoice
from tf_dist.core.pipeline.session import NEVER_FITS, EndCause, SessionEnd, run_policy
from tf_dist.core.pipeline.workflow_stop import JobFate, StopDecision
from tf_dist.errors import AlreadyExists, ClusterError, InvalidJob, Problem, Unavailable

if TYPE_CHECKING:
    from tf_dist.local.embedded import EmbeddedSettings

_FOLLOW: Final = LogOptions(follow=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A run."""

    entry: LoadedJob
    """The job."""
    companions: tuple[YamlDocument, ...]
    """Its companion objects."""
    spaces: TargetNamespaces
    """Their namespaces."""
    timeout: float | None
    """Seconds after which the run ends; None: never."""

    @property
    def namespace(self) -> str:
        """The namespace of the job."""
        return self.spaces.of(self.entry.written)

    def refuse(self, problems: Iterable[Problem]) -> None:
        """InvalidFiles if the job has problems."""
        written = self.entry.written
        found = [FileProblem(written.file, written.number, written.line(one.path), one) for one in problems]
        if found:
            raise InvalidFiles(found)

    def refuse_idle(self) -> None:
        """InvalidFiles for a job that would never start: it is suspended, or another controller manages it."""
        if self.entry.job.managed_elsewhere:
            hint = "leave spec.runPolicy.managedBy out to have tf-dist run it"
            self.refuse([Problem("spec.runPolicy.managedBy", "another controller manages the job", hint)])
        if self.entry.job.run_policy.suspend:
            hint = "remove the suspension, or submit the job: tf-dist local up, tf-dist submit, tf-dist resume"
            self.refuse([Problem("", "the job is suspended, so it would never start", hint)])

    def create_companions(self, cluster: Cluster) -> None:
        """Create or update the companion objects."""
        for written in self.companions:
            create_companion(cluster, written, self.spaces.of(written), owner=companion_owner(written, [self.entry]))


_KEPT_LINES: Final = 1_000
_GRACE: Final = 30.0  # seconds, the default of Kubernetes


def _never_fits(end: SessionEnd) -> bool:
    return end.result.reason == NEVER_FITS


def _end_text(end: SessionEnd) -> str:
    """The state of a job that did not end by itself; "" for a job that did."""
    match end.cause:
        case EndCause.STOPPED:
            return f"interrupted by {signal.Signals(end.signal).name}"
        case EndCause.DELETED:
            return "deleted"
        case EndCause.NOT_ADMITTED | EndCause.OVERDUE:
            return "never started" if _never_fits(end) else "stopped: the time limit is reached"
    return ""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run: how the job ended, and what its replicas printed. Notebooks show a table."""

    end: SessionEnd
    """Why the run ended."""
    snapshot: JobSnapshot
    """The job and its replicas at the end of the run."""
    seconds: float
    """The duration of the run."""
    _at: float = field(default_factory=now, repr=False)

    @property
    def name(self) -> str:
        """The job's name."""
        return self.snapshot.job.key.name

    @property
    def outcome(self) -> Outcome:
        """How the job ended, or why the run did: kind, reason, replica, exit code, restarts, metrics, checkpoint, …."""
        return self.snapshot.observed(self.end.outcome(self.snapshot.status, self._at))

    @property
    def succeeded(self) -> bool:
        """Whether the job succeeded."""
        return self.outcome.kind is OutcomeKind.SUCCEEDED

    @property
    def state(self) -> str:
        """The final state, in a word or two."""
        return _end_text(self.end) or outcome_word(self.snapshot.status)

    @property
    def metrics(self) -> Mapping[str, float]:
        """The last value of each metric that the leader (the chief, or worker 0) printed, or else another replica."""
        return self.snapshot.result.metrics

    @property
    def checkpoint(self) -> str:
        """The last checkpoint that the replicas printed; "" for none."""
        return self.snapshot.result.checkpoint

    @property
    def logs(self) -> Mapping[str, tuple[str, ...]]:
        """The last lines of each replica, at most 1,000: ``result.logs["worker-0"]``."""
        return self.snapshot.logs

    @property
    def restarts(self) -> Mapping[str, int]:
        """The number of restarts by cause, including restarts of containers in their pods."""
        snapshot = self.snapshot
        # The status of an ended job already includes the restarts of its last pods.
        living = sum(pod.restarts for pod in snapshot.pods) if snapshot.status.phase in LIVE else 0
        inside = snapshot.status.container_restarts + living
        return {**snapshot.status.restarts, **({"container restarted in its pod": inside} if inside else {})}

    @property
    def findings(self) -> tuple[Diagnosis, ...]:
        """Why a run did not succeed, and what to do. See ``Client.explain``."""
        snapshot = self.snapshot
        if self.end.cause in (EndCause.STOPPED, EndCause.SUCCEEDED):
            return ()
        return diagnose(snapshot.job, snapshot.status, snapshot.pods, self._at, self.logs)

    def raise_for_outcome(self) -> Self:
        """Return the result if the job succeeded. Else raise JobFailed (JobEvicted, ImagePullFailed) or JobTimeout."""
        if self.succeeded:
            return self
        said = next((f": {one.summary}" for one in self.findings), "")
        hint = next((one.resolution for one in self.findings), "")
        message = f"{self.name} {self.state}{said}"
        raise outcome_error(self.outcome, message, hint=hint, decided=self.end.result.decided)

    def __repr__(self) -> str:
        numbers = (f"{name}={format_number(value)}" for name, value in sorted(self.metrics.items()))
        facts = [format_duration(self.seconds), *numbers, *([f"checkpoint={self.checkpoint}"] * bool(self.checkpoint))]
        return f"Result({self.name}: {self.state}, {', '.join(facts)})"

    def _repr_html_(self) -> str:
        facts = [*((name, format_number(value)) for name, value in sorted(self.metrics.items()))]
        facts += [("checkpoint", self.checkpoint)] if self.checkpoint else []
        facts += [("duration", format_duration(self.seconds)), ("restarts", str(sum(self.restarts.values())))]
        facts += [("usage", used)] if (used := usage_text(self.snapshot.status.usage.until(self._at))) else []
        facts += [(one.level.value, f"{one.summary} {one.detail} {one.resolution}") for one in self.findings]
        return table_html(f"{self.name}: {self.state}", ("", ""), facts) + self.snapshot._repr_html_()


class _RunHost(SessionHost):
    """A session host that reports to ``view``."""

    view: JobView
    again: str
    """The effect of a second signal on the pods: ``kill`` or ``leave``."""

    def tell(self, end: SessionEnd, decision: StopDecision | None) -> None:
        """See ``SessionHost``."""
        if end.cause not in (EndCause.STOPPED, EndCause.NOT_ADMITTED, EndCause.OVERDUE) or _never_fits(end):
            return
        why = "stopping" if end.cause is EndCause.STOPPED else "the time limit is reached: stopping"
        monitor, again = self.monitor, self.again
        periods = (one.pod_spec.get("terminationGracePeriodSeconds") for one in monitor.snapshot.job.replica_specs)
        grace = max((_GRACE if one is None else float(one) for one in periods), default=_GRACE)
        ending = Ending(_end_text(end), time.monotonic() + grace, again)
        monitor.snapshot = replace(monitor.snapshot, ending=ending)
        if self.policy.fates[end.cause] is JobFate.LEAVE:
            self.view.say(f"{why} to watch; the job continues", "yellow")
        else:
            period = f"pods get their grace period of {grace:.0f} s"
            self.view.say(f"{why}: {period}; once more to {again} them at once", "yellow")
            self.view.show(monitor.snapshot, [])

    def report(self, end: SessionEnd, decision: StopDecision) -> None:
        """See ``SessionHost``."""
        if decision.problem:
            raise Unavailable(decision.problem)


def run_session(
    cluster: Cluster,
    job: StoredJob,
    view: JobView,
    signals: Signals,
    open_log: Callable[[WatchingJobInformer], LogOpener],
    *,
    timeout: float | None,
    keep: bool = False,
    here: bool = False,
) -> Result:
    """Show a job until it ends, or until the run ends.

    ``open_log``: how logs are read. ``timeout``: seconds after which the run ends (None: never). ``keep``: the job
    remains at the end. ``here``: the cluster is embedded in this process, and never grows.
    """
    deadline = None if timeout is None else now() + timeout
    policy = run_policy(deadline=deadline, keep=keep, fixed_capacity=here)
    with monitoring(cluster, job, view, signals, open_log, _KEPT_LINES) as monitor:
        host = _RunHost(cluster, job, monitor, policy, view.tick)
        host.view, host.again = view, "kill" if here else "leave"
        return Result(host.run(), monitor.snapshot, host.seconds)


def follow_job(
    connection: Connection, job: StoredJob, view: Callable[[], JobView], signals: Signals, *, timeout: float | None
) -> Result:
    """Watch a job of a cluster until it ends."""
    cluster = connection.cluster
    with closing(view()) as shown:
        opener = log_opener(cluster, _FOLLOW)
        return run_session(cluster, job, shown, signals, lambda _: opener, timeout=timeout, keep=True)


def run_on(
    request: RunRequest,
    connection: Connection,
    view: Callable[[], JobView],
    signals: Signals,
    *,
    keep: bool = False,
    choice: DriverChoice = DriverChoice.AUTO,
) -> Result:
    """Run a job on a cluster, and delete it at the end unless ``keep``. ``choice``: whether this process may lead.

    If the session fails with a ClusterError, the error has a note that the job may still exist.
    """
    from tf_dist.client.controller_host import hosted_controller

    cluster, entry, namespace = connection.cluster, request.entry, request.namespace
    archive = code_archive(cluster, entry)
    request.create_companions(cluster)
    key = JobKey(namespace, entry.job.key.name)
    with (
        closing(view()) as shown,
        show_warnings(shown),
        hosted_controller(connection, entry.job.dialect, key, choice=choice) as host,
    ):
        signals.listen(lambda _: connection.hurry())
        workdir = None if connection.here else ""
        job = create_job(cluster, entry, namespace, workdir=workdir, archive=archive)
        for problem in leader_problems(cluster, [job]) if host is None else ():
            shown.say(f"{problem.summary} ({problem.resolution})", "yellow")
        try:
            opener = log_opener(cluster, _FOLLOW)
            return run_session(cluster, job, shown, signals, lambda _: opener, timeout=request.timeout, keep=keep)
        except ClusterError as error:
            error.add_note(f"{job.shown} may still be in {connection.name}: tf-dist delete {job.shown} -n {namespace}")
            raise


def run_here(request: RunRequest, settings: EmbeddedSettings, view: Callable[[], JobView], signals: Signals) -> Result:
    """Run a job on its own embedded cluster; InvalidFiles if this machine cannot run it."""
    from tf_dist.local.embedded import EmbeddedCluster
    from tf_dist.local.preflight import machine_problems

    request = replace(request, entry=with_code_on_this_machine(request.entry))
    entry = request.entry
    with EmbeddedCluster(settings) as embedded:
        companions = [*(written.content for written in request.companions), *entry.owned]
        request.refuse(machine_problems(entry.job, companions, settings, embedded.network))
        cluster = embedded.cluster
        for written in (entry.written, *request.companions):
            with suppress(AlreadyExists):
                cluster.create(NAMESPACES, None, {"metadata": {"name": request.spaces.of(written)}})
        request.create_companions(cluster)
        logs = embedded.node.state_dir / (settings.keep_logs_dir or "")
        with closing(view()) as shown, show_warnings(shown):
            if embedded.network.no_way_out:
                why = f"{embedded.network.no_way_out}, or run with --network shared"
                shown.say(f"pods reach each other but nothing outside this machine: {why}", "yellow")
            job = create_job(cluster, entry, request.namespace, workdir="")
            opener = partial(_from_files, logs)
            return run_session(cluster, job, shown, signals, opener, timeout=request.timeout, here=True)


def _from_files(logs: Path, watch: WatchingJobInformer) -> LogOpener:
    """Read logs from their files, which remain after their pods are gone."""
    from tf_dist.cluster.kubelet.pod.container_logs import ContainerLogStream

    def open_log(pod: Object, instance: ContainerInstance) -> Stream[bytes]:
        metadata = pod["metadata"]
        folder = logs / metadata["namespace"] / metadata["name"] / instance.pod_uid / instance.container
        file = folder / f"{instance.number}.log"
        return ContainerLogStream(file, _FOLLOW, lambda: not watch.ended(instance))

    return open_log


def embedded_settings(
    entry: LoadedJob,
    workdir: str | os.PathLike[str],
    network: str,
    node: Mapping[str, str],
    entrypoints: Mapping[str, Sequence[str]],
    keep: str | os.PathLike[str],
) -> EmbeddedSettings:
    """The settings of the embedded cluster for one job; InvalidJob. See ``run``."""
    from tf_dist.cluster.kubelet.node.node_settings import NetworkMode
    from tf_dist.local.embedded import EmbeddedSettings

    if network not in list(NetworkMode):
        hint = f"known: {', '.join(NetworkMode)}"
        raise InvalidJob([Problem("network", f"there is no network {network!r}", hint)])
    folder = Path(workdir or file_folder(entry.written.file)).absolute()
    if not os.path.isdir(folder):  # false without permission, too
        raise InvalidJob([Problem("workdir", f"{folder} is not a folder", "name one that exists")])
    kept = Path(keep).absolute() if keep else None
    return EmbeddedSettings(
        workdir=folder,
        network=NetworkMode(network),
        capacity={name: str(quantity) for name, quantity in node.items()},
        entrypoints={image: tuple(command) for image, command in entrypoints.items()},
        keep_logs_dir=kept / "logs" if kept else Path("logs"),
        data_dir=kept,
        serve=False,
    )


def with_signals(work: Callable[[Signals], Result]) -> Result:
    """The result of some work. A signal that stopped it then has its usual effect."""
    signals = Signals(exit_after=0)
    if threading.current_thread() is threading.main_thread():
        with signals:
            result = work(signals)
    else:  # Python handles signals in the main thread only
        result = work(signals)
    if result.end.cause is EndCause.STOPPED:
        try:
            signal.raise_signal(result.end.signal)
        except KeyboardInterrupt:
            raise RunInterrupted(f"{result.name} was interrupted, and its pods have ended") from None
    return result


class RunInterrupted(KeyboardInterrupt):
    """A run was interrupted. Notebooks show the message without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]
