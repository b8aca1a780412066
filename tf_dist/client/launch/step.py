"""From the command line to a job that is looked on: order, cluster, driver, job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final

from tf_dist.client import exits
from tf_dist.client.bundle import Bundle, Entry, text_of
from tf_dist.client.companions import create_companion
from tf_dist.client.connect import Connection, connect
from tf_dist.client.following import opener
from tf_dist.client.inline import inline_driver
from tf_dist.client.jobs import StoredJob, now
from tf_dist.client.launch.arguments import Options
from tf_dist.client.launch.launching import Launch
from tf_dist.client.launch.order import order
from tf_dist.client.launch.outputs import Outputs, ProgressFile
from tf_dist.client.launch.placing import Interrupted, Placing
from tf_dist.client.launch.relay import Relay
from tf_dist.client.launch.stopping import Stopping
from tf_dist.client.onlooking import looking_on
from tf_dist.client.patience import PASSING
from tf_dist.client.submitting import Spaces
from tf_dist.client.telling import prefix_width, warnings_told
from tf_dist.cluster.api import Cluster, LogOptions
from tf_dist.core.conclusion import Limits
from tf_dist.core.model import JobKey
from tf_dist.driver.signals import Signals
from tf_dist.errors import ClusterError, TFDistError

_FOLLOW: Final = LogOptions(follow=True)
_OWN_NAME: Final = len("tf-dist")
_QUICK: Final = 5.0  # seconds that a request may take when the time is short


def run(options: Options, signals: Signals, relay: Relay) -> int:
    """One try of the step; its exit code. TFDistError when it cannot even begin, or not go on."""
    stopped: list[int] = []
    signals.listen(stopped.append)
    outputs = Outputs(options.out)
    outputs.start("")
    try:
        connection = connect(options.kubeconfig, options.context)
        signals.listen(lambda _: connection.hurry())
        entry, bundle = order(options, connection.namespace)
        step = _Step(options, signals, relay, outputs, connection, entry)
        outputs.put({"job": entry.job.key.name})
        for found in bundle.problems:
            relay.say(f"warning: {text_of(found)} {found.problem.hint}".rstrip())
        if stopped:
            raise Interrupted(stopped[0])
        return step.run(bundle)
    except Interrupted as interrupted:
        outputs.put({"status": "Terminated", "reason": "Terminated", "message": "stopped before the job was made"})
        return exits.SIGNALLED + interrupted.number
    except TFDistError as error:
        outputs.put({"status": "Error", "reason": type(error).__name__, "message": str(error)})
        raise


class _Step:
    def __init__(
        self,
        options: Options,
        signals: Signals,
        relay: Relay,
        outputs: Outputs,
        connection: Connection,
        entry: Entry,
    ) -> None:
        self._options = options
        self._signals = signals
        self._relay = relay
        self._outputs = outputs
        self._connection = connection
        self._entry = entry
        self._namespace = Spaces(options.namespace, connection.namespace).of(entry.written)

    def run(self, bundle: Bundle) -> int:
        """Make or find the job, and see it to its end."""
        cluster = self._connection.cluster
        self._relay.width = max(prefix_width(self._entry.job), _OWN_NAME)
        for written in bundle.companions:
            create_companion(cluster, written, self._namespace, owner=self._base_name())
        with warnings_told(self._relay), self._driven() as annotations:
            placing = Placing(cluster, self._entry, self._namespace, self._signals, self._relay.say)
            job = placing.place(annotations, None if self._connection.here else "")
            self._relay.say(f"{job.shown} in namespace {job.namespace}")
            try:
                return self._see_to_its_end(job)
            except PASSING:
                raise  # the next try finds it
            except ClusterError:
                _give_up(cluster, job)
                raise

    def _base_name(self) -> str:
        """What the document calls the job: of every run of the workflow the same, as what stands beside it."""
        name = self._entry.job.key.name
        return name.rpartition("-")[0] if self._options.workflow_uid else name

    @contextmanager
    def _driven(self) -> Iterator[Mapping[str, str]]:
        if not self._options.drive:
            yield {}
            return
        key = JobKey(self._namespace, self._entry.job.key.name)
        with inline_driver(self._connection, self._entry.job.dialect, key, takes_over=True) as annotations:
            yield annotations

    def _see_to_its_end(self, job: StoredJob) -> int:
        cluster, options, relay = self._connection.cluster, self._options, self._relay
        deadline = None if options.timeout is None else now() + options.timeout
        with ExitStack() as stack:
            quick: Cluster = cluster
            if self._connection.place is not None:
                quick = stack.enter_context(self._connection.place.cluster(connections=2, retries=0, timeout=_QUICK))
            onlooker = stack.enter_context(
                looking_on(cluster, job, relay, self._signals, lambda _: opener(cluster, _FOLLOW))
            )
            launch = Launch(
                cluster,
                job,
                relay,
                self._outputs,
                ProgressFile(options.progress_file, options.total_steps),
                Stopping(quick, job, options, self._connection.namespace, relay.say),
                Limits(admission=options.pending_timeout, deadline=deadline),
            )
            return launch.run(onlooker)


def _give_up(cluster: Cluster, job: StoredJob) -> None:
    """Nobody will look at it any more."""
    try:
        cluster.delete(job.resource, job.namespace, job.name, uid=job.uid)
    except ClusterError:
        return
