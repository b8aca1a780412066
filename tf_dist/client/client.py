"""Client: the Python API for the jobs of a cluster. The commands of tf-dist also use it."""

from __future__ import annotations

import os
import queue
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from tf_dist.client.connection import Connection, connect
from tf_dist.client.job_display import view_of
from tf_dist.client.log_follower import QUIET, LogEnded, LogFollower, LogLine, LogLines, log_opener, without_stamp
from tf_dist.client.monitor import (
    JobEvent,
    JobSnapshot,
    ObjectChanged,
    ObjectsListed,
    ObjectWatcher,
    WatchingJobInformer,
    observed_outcome,
    read_log_ends,
)
from tf_dist.client.monitor import changed_pods as pods_in
from tf_dist.client.stored_jobs import (
    ClusterEvent,
    JobList,
    StoredJob,
    dns_problems,
    events_of,
    find_job,
    find_problems,
    leader_problems,
    leaders_of,
    list_jobs,
    network_problems,
    pods_of,
    refuse_finished,
    replica_of,
    start_events,
)
from tf_dist.client.wait import wait_for, wait_goal, wait_on_loop
from tf_dist.cluster.api import JOB_KINDS, PODS, LogOptions, Object
from tf_dist.core.dialects import scale_patch, suspend_patch
from tf_dist.core.model import names
from tf_dist.core.model.assignment import possible_replicas
from tf_dist.core.model.fieldpath import suggestion
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import STOPPED
from tf_dist.errors import ClusterError, Conflict, Forbidden, InvalidJob, NotFound, Problem, Unavailable

if TYPE_CHECKING:
    from tf_dist.client.job_files import JobFiles
    from tf_dist.client.leader_status import LeaderStatus
    from tf_dist.client.run_session import Result
    from tf_dist.client.tfjob import TFJob
    from tf_dist.core.diagnostics.diagnose import Diagnosis

_ATTEMPTS: Final = 5  # of a write: the job's controller also writes the job

JobReference = str | StoredJob
"""A job: NAME, tfjob/NAME or vcjob/NAME in the client's namespace, or a job that a method of the client returned."""
_Jobs = list[StoredJob]  # in the class, list is a method
_Pods = list[Object]


_KEEP_LOGS: Final = (
    "keep the pods (TFJob: cleanPodPolicy: None), or follow the job while it runs: tf-dist logs --follow"
)


def _silent(_: str) -> None:
    """Ignore a message."""


class Client:
    """The jobs of a cluster: by default, of the local cluster if it runs, or else of the pod or the kubeconfig.

    All errors are ``TFDistError``. ClusterError and its subclasses (NotFound, Forbidden, Unavailable, …) come from the
    cluster. InvalidJob lists the problems of an argument. JobFailed and its subclasses report how a job ended. The
    methods may be called from several threads.

    :param kubeconfig: The kubeconfig, by default ``KUBECONFIG`` or ``~/.kube/config``.
    :param context: The context of the kubeconfig, by default the current one.
    :param local: Use the cluster that ``tf-dist local up`` runs on this machine.
    :param in_cluster: Use the cluster of the pod in which this process runs.
    :param namespace: The namespace of jobs that name no other, by default that of the context, or ``default``.
    :param connection: An open connection, instead of the other arguments.
    """

    def __init__(
        self,
        kubeconfig: str = "",
        context: str = "",
        *,
        local: bool = False,
        in_cluster: bool = False,
        namespace: str = "",
        connection: Connection | None = None,
    ) -> None:
        self.connection = connection or connect(kubeconfig, context, local=local, in_cluster=in_cluster)
        self.cluster = self.connection.cluster
        self.namespace = namespace or self.connection.namespace

    def close(self) -> None:
        """Close the connection; ``with Client() as client`` does so."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {self.connection.name}, namespace {self.namespace}>"

    def submit(self, job: TFJob, *, namespace: str = "") -> StoredJob:
        """Submit a job with the companion objects of its file. To run, the job needs a leader, such as a controller.

        ``namespace``: the namespace of a job that names none. Raises InvalidJob if the job names another namespace, and
        AlreadyExists, Forbidden or NotFound (the namespace or the kind does not exist), with a hint. A UserWarning
        reports a missing leader.
        """
        (stored,) = self.submit_files(job.files(), namespace=namespace)
        for one in leader_problems(self.cluster, [stored]):
            warnings.warn(f"{one.summary} ({one.resolution})", stacklevel=2)
        return stored

    def submit_files(self, files: JobFiles, *, namespace: str = "", report: Callable[[str], object] = _silent) -> _Jobs:
        """Submit the jobs and objects of files. ``report`` gets a line for each object."""
        from tf_dist.client.job_files import require_valid
        from tf_dist.client.submission import (
            TargetNamespaces,
            code_archive,
            companion_owner,
            create_companion,
            create_job,
        )

        require_valid(files)
        spaces = TargetNamespaces(namespace, self.namespace)
        jobs = [(entry, spaces.of(entry.written)) for entry in files.jobs]
        companions = [(written, spaces.of(written)) for written in files.companions]
        archives = [code_archive(self.cluster, entry) for entry in files.jobs]
        for written, where in companions:
            owner = companion_owner(written, files.jobs)
            done = create_companion(self.cluster, written, where, owner=owner)
            report(f"{written.content['kind'].lower()}/{written.content['metadata']['name']} {done}")
        # Only nodes on this machine have the folder of the file.
        workdir = None if self.connection.here else ""
        created = [
            create_job(self.cluster, entry, where, workdir=workdir, archive=archive)
            for (entry, where), archive in zip(jobs, archives, strict=True)
        ]
        for job in created:
            report(f"{job.shown} submitted")
        return created

    def leaders(self, jobs: Sequence[StoredJob]) -> tuple[LeaderStatus, ...]:
        """The leaders of the live jobs. A scope without a leader has no ``holder``.

        A scope is omitted if its Leases cannot be read.
        """
        return leaders_of(self.cluster, jobs)

    def slow_names(self, jobs: Sequence[StoredJob]) -> tuple[str, str] | None:
        """A finding and its resolution if the DNS of the cluster may delay the start of the jobs; else None."""
        found = next((one for job in jobs for one in dns_problems(self.cluster, job)), None)
        return (found.summary, found.resolution) if found else None

    def get(self, job: JobReference) -> StoredJob:
        """Read a job. NotFound suggests jobs with similar names, or reports that the job was created again.

        The ``outcome`` of the job has the last metrics and checkpoint that its leader printed, while its log exists.
        """
        if isinstance(job, str):
            return self._observed(find_job(self.cluster, job, self.namespace))
        found = StoredJob(job.resource, self.cluster.get(job.resource, job.namespace, job.name))
        if found.uid != job.uid:
            raise NotFound(f"{job.shown} was deleted and created anew", hint="get it by its name")
        return self._observed(found)

    def _observed(self, job: StoredJob) -> StoredJob:
        """The job, with an ``outcome`` that reads the logs when it is used."""
        return job.observed_by(partial(observed_outcome, self.cluster, job))

    def list(self, *, all_namespaces: bool = False, labels: str = "") -> JobList:
        """The jobs of the namespace, or of all, with these labels (``team=vision``). Notebooks show a table."""
        return list_jobs(self.cluster, None if all_namespaces else self.namespace, labels)

    def watch(self, job: JobReference = "", *, all_namespaces: bool = False) -> Iterator[tuple[str, StoredJob]]:
        """Yield ADDED, MODIFIED or DELETED and the job: first for existing jobs, then for each change.

        The watch never ends, and survives short interruptions. With ``job`` it watches this job until it is deleted.
        Raises Forbidden or NotFound if no kind of job can be watched.
        """
        only = self._found(job) if job else None
        kinds = (only.resource,) if only else JOB_KINDS
        where = only.namespace if only else None if all_namespaces else self.namespace
        fields = f"metadata.name={only.name}" if only else ""
        changes: queue.Queue[JobEvent] = queue.Queue()
        watchers = [ObjectWatcher(self.cluster, kind, where, changes.put, fields=fields) for kind in kinds]
        unseen = 0
        try:
            while True:
                match changes.get():
                    case NotFound() | Forbidden() as error:  # a kind that does not exist, or may not be read
                        unseen += 1
                        if unseen == len(kinds):
                            raise error
                    case ClusterError() as error:
                        raise error
                    case ObjectChanged() as change if only is None or change.object["metadata"]["uid"] == only.uid:
                        yield change.type, StoredJob(change.resource, change.object)
                        if only and change.type == "DELETED":
                            return
        finally:
            for watcher in watchers:
                watcher.close()

    def wait(self, job: JobReference, until: str = "finished", *, timeout: float | None = None) -> StoredJob:
        """Wait until a job is in a state, and return the job. Its ``outcome`` reports how it ended.

        ``until``: finished (succeeded or failed), succeeded, failed, running, admitted, scheduled (every pod has a
        node), suspended, or deleted (returns the last version of the job). Raises JobFailed (JobEvicted,
        ImagePullFailed), with ``outcome``, if the job can no longer reach the state, NotFound if it was deleted, and
        GoalNotReached after ``timeout`` seconds. Interruptions of the cluster of up to two minutes are retried.
        """
        found, goal = self._found(job), wait_goal(until)
        (reached,) = wait_for(self.cluster, [found], goal, timeout, _silent)
        return self._observed(reached or found)

    def follow(self, job: JobReference, *, timeout: float | None = None, show: bool = True) -> Result:
        """Follow a job until it ends, or for ``timeout`` seconds, and return its ``Result``, as ``run`` does.

        ``show``: see ``run``. The job is never changed.
        """
        from tf_dist.client.run_session import follow_job, with_signals

        found = self._found(job)
        view = partial(view_of, found.job, show=show)
        return with_signals(partial(follow_job, self.connection, found, view, timeout=timeout))

    async def wait_async(
        self, job: JobReference, until: str = "finished", *, timeout: float | None = None
    ) -> StoredJob:
        """``wait`` for coroutines. It does not block the event loop, and cleans up when it is cancelled."""
        import asyncio

        goal = wait_goal(until)
        found = await asyncio.to_thread(self._found, job)
        return self._observed(await wait_on_loop(self.cluster, found, goal, timeout) or found)

    def logs(
        self,
        job: JobReference,
        *,
        replicas: Sequence[str] = (),
        follow: bool = False,
        tail: int | None = None,
        since: float | None = None,
        timestamps: bool = False,
        previous: bool = False,
        note: Callable[[str], object] = _silent,
    ) -> Iterator[LogLine]:
        """Yield the log lines of the replicas, in the order in which they were written.

        ``replicas``: only these replicas (``worker-1``, or ``ps`` for a type). ``follow``: yield new lines, also of
        restarted replicas, until the job ends. ``tail``: the number of last lines of each replica. ``since``: only the
        lines of this many seconds. ``previous``: the logs from before the last restart. ``note`` gets messages, for
        example that a pod has not started. Raises Unavailable if no log exists yet.
        """
        found = self._found(job)
        # Including replicas that start when the job grows.
        types = {str(replica): replica.type for replica in possible_replicas(found.job)}
        words = [*types, *(spec.type for spec in found.job.replica_specs)]
        for word in replicas:
            if word not in words:
                hint = suggestion(word, words, f"there are {', '.join([*types][:10])}")
                raise InvalidJob([Problem("replicas", f"{found.shown} has no replica {word!r}", hint)])
        chosen = frozenset(name for name, type_ in types.items() if not replicas or {name, type_} & {*replicas})
        stamped = timestamps or not follow
        options = LogOptions(follow=follow, tail=tail, since_seconds=since, timestamps=stamped, previous=previous)
        if follow:
            yield from self._follow(found, options, chosen, note)
        else:
            for line in self._lines(found, options, chosen, note):
                yield line if timestamps else line._replace(text=without_stamp(line.text))

    def _lines(
        self, job: StoredJob, options: LogOptions, chosen: frozenset[str], note: Callable[[str], object]
    ) -> _Lines:
        lines: queue.Queue[LogLines | LogEnded] = queue.Queue()
        following = LogFollower(job.job, log_opener(self.cluster, options), lines)
        pods = pods_of(self.cluster, job)
        silent = [
            pod["metadata"]["name"] for pod in pods if str(replica_of(pod)) in chosen and not following.notice(pod)
        ]
        found: _Lines = []
        for _ in range(following.count):
            while isinstance(item := lines.get(), LogLines):
                found += item.each()
            if item.problem:
                note(item.problem)
        for name in silent:
            note(f"{name} has not started yet")
        if job.status.finished and not pods:
            raise Unavailable(f"{job.shown} has ended, and its pods were deleted with their logs", hint=_KEEP_LOGS)
        if not following.count:
            raise Unavailable(
                f"no container of {job.shown} has a log", hint=f"tf-dist explain {job.shown} explains why"
            )
        return sorted(found, key=lambda line: line.text.partition(" ")[0])

    def _follow(
        self, job: StoredJob, options: LogOptions, chosen: frozenset[str], note: Callable[[str], object]
    ) -> Iterator[LogLine]:
        with WatchingJobInformer(self.cluster, job) as watch:
            following = LogFollower(job.job, log_opener(self.cluster, options), watch)
            try:
                while True:
                    over = watch.over and not following.pending(watch.ended)
                    ending = following.pending(watch.ended)
                    batch = watch.take(0 if over else QUIET if ending else None)
                    if ending and not batch:
                        following.reread_quiet(watch.ended)
                    for item in batch:
                        if isinstance(item, LogLines):
                            yield from item.each()
                        elif isinstance(item, LogEnded) and item.problem:
                            note(item.problem)
                    pods = list(pods_in(batch))
                    if over and not batch:
                        # Job and pods have separate watches: the end of the job may come before that of its pods.
                        pods = pods_of(self.cluster, job)
                        watch.learn(ObjectsListed(PODS, pods))
                    news = [following.notice(pod) for pod in pods if str(replica_of(pod)) in chosen]
                    if over and not batch and not any(news) and not following.pending(watch.ended):
                        return
            finally:
                following.close()

    def pods(self, job: JobReference) -> _Pods:
        """The pods of a job, as Kubernetes objects."""
        return pods_of(self.cluster, self._found(job))

    def events(self, job: JobReference) -> tuple[ClusterEvent, ...]:
        """The events of a job and its pods, oldest first; empty without permission to read them."""
        found = self._found(job)
        return tuple(map(ClusterEvent.of, events_of(self.cluster, found, pods_of(self.cluster, found))))

    def explain(self, job: JobReference) -> tuple[Diagnosis, ...]:
        """Why a job waits or failed, and what to do, most important first; empty if there are no findings.

        Each finding has ``level``, ``category`` (a stable word), ``summary``, ``detail`` and ``resolution``.
        """
        found = self.get(job)
        pods = pods_of(self.cluster, found)
        try:
            logs = read_log_ends(self.cluster, found, pods).logs
        except InvalidJob:  # its spec is invalid, which is the first problem
            logs = {}
        events = start_events(self.cluster, found, pods)
        problems = (*leader_problems(self.cluster, [found]), *find_problems(found, pods, logs, events))
        return (*problems, *network_problems(self.cluster, found, pods), *dns_problems(self.cluster, found))

    def snapshot(self, job: JobReference) -> JobSnapshot:
        """The current state of a job, its replicas, and what the leader printed. Notebooks show a table.

        InvalidJob if the spec of the job is invalid.
        """
        found = self.get(job)
        return read_log_ends(self.cluster, found, pods_of(self.cluster, found))

    def scale(self, job: JobReference, workers: int) -> StoredJob:
        """Change the number of workers. Returns the same object if the job has this number already.

        The last workers stop, or new workers start once capacity is free. InvalidJob if the job has ended, has no
        workers, or would be invalid.
        """
        found = self._found(job)
        refuse_finished(found)
        if found.worker_bounds == (workers, workers):
            return found
        return self._changed(found, lambda stored: scale_patch(stored.stored, workers))

    def suspend(self, job: JobReference) -> StoredJob:
        """Suspend a job: its pods stop, and it gives up its admission. InvalidJob if it has ended."""
        return self._changed(self._found(job), lambda stored: suspend_patch(stored.stored, True))

    def resume(self, job: JobReference) -> StoredJob:
        """Resume a job that was suspended, or that a policy aborted. InvalidJob if it has ended."""
        return self._changed(self._found(job), _resume_patch)

    def delete(
        self,
        job: JobReference,
        *,
        foreground: bool = False,
        wait: bool = False,
        timeout: float | None = None,
        missing_ok: bool = False,
    ) -> None:
        """Delete a job with its pods and services. Pods get their grace period.

        ``foreground``: delete the job itself last. ``wait``: return when it is gone; GoalNotReached after ``timeout``
        seconds. ``missing_ok``: do not raise NotFound.
        """
        how = "Foreground" if foreground or wait else "Background"
        try:
            found = self._found(job)
            self.cluster.delete(found.resource, found.namespace, found.name, uid=found.uid, propagation=how)
        except NotFound:
            if missing_ok:
                return
            raise
        if wait:
            wait_for(self.cluster, [found], "deleted", timeout, _silent)

    def _found(self, job: JobReference) -> StoredJob:
        return job if isinstance(job, StoredJob) else self.get(job)

    def _changed(self, job: StoredJob, patch: Callable[[StoredJob], Mapping[str, Any]]) -> StoredJob:
        """Patch a job, and return it. Conflict if other writers are faster."""
        for attempt in range(1, _ATTEMPTS + 1):
            refuse_finished(job)
            try:
                return StoredJob(
                    job.resource, self.cluster.patch(job.resource, job.namespace, job.name, dict(patch(job)))
                )
            except Conflict:
                if attempt == _ATTEMPTS:
                    raise
                job = self.get(job)
        raise AssertionError("the last attempt returns or raises")


_Lines = list[LogLine]


def _resume_patch(job: StoredJob) -> Mapping[str, Any]:
    patch = suspend_patch(job.stored, False)
    if job.status.phase not in STOPPED or job.status.reason == Reason.SUSPENDED:
        return patch
    # A job that a policy aborted is not suspended. This annotation names the attempt that ends.
    metadata = patch.get("metadata") or {}
    annotations = {**(metadata.get("annotations") or {}), names.RESUME_ATTEMPT: str(job.status.attempts.job)}
    return {**patch, "metadata": {**metadata, "annotations": annotations}}


def run(
    job: TFJob | str | os.PathLike[str],
    *,
    client: Client | None = None,
    timeout: float | None = None,
    show: bool = True,
    workdir: str | os.PathLike[str] = "",
    network: str = "auto",
    node: Mapping[str, str] | None = None,
    entrypoints: Mapping[str, Sequence[str]] | None = None,
    keep: str | os.PathLike[str] = "",
) -> Result:
    """Run a job, or the job of a file, to its end on this machine, and return its result. Nothing remains afterwards.

    The replicas are processes of an embedded cluster that exists during this call. A job that fails does not raise an
    error: ``result.outcome`` reports how it ended, and ``result.raise_for_outcome()`` raises. InvalidJob is raised
    before anything starts if the job can never run here. Ctrl-C stops the job, with the grace period of its pods, and
    raises KeyboardInterrupt. May be called in any thread.

    :param client: Run the job on the cluster of this client, and delete it at the end. If no controller leads there,
        this process leads.
    :param timeout: Seconds after which the run ends.
    :param show: Print state changes and log lines; in a notebook, show a table.
    :param workdir: The working directory of containers that name none, by default the folder of the file, or the
        current one.
    :param network: The network isolation of pods: ``auto``, ``isolated`` or ``shared``.
    :param node: The resources of this machine, by default its real resources: ``{"cpu": "8", "nvidia.com/gpu": "2"}``.
    :param entrypoints: The command of an image, for containers without one: ``{"my/image": ["python", "train.py"]}``.
    :param keep: A folder in which logs (in ``logs``) and volumes remain.
    """
    from tf_dist.client import run_session
    from tf_dist.client.job_files import one_job, require_valid
    from tf_dist.client.submission import TargetNamespaces
    from tf_dist.client.tfjob import TFJob

    job = job if isinstance(job, TFJob) else TFJob.from_file(job)
    files = require_valid(job.files())
    request = run_session.RunRequest(
        entry=one_job(files),
        companions=files.companions,
        spaces=TargetNamespaces("", client.namespace if client else "default"),
        timeout=timeout,
    )
    request.refuse_idle()
    view = partial(view_of, request.entry.job, show=show)
    if client is not None:
        return run_session.with_signals(partial(run_session.run_on, request, client.connection, view))
    settings = run_session.embedded_settings(request.entry, workdir, network, node or {}, entrypoints or {}, keep)
    return run_session.with_signals(partial(run_session.run_here, request, settings, view))
