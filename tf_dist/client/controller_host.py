"""Controller host: a program that waits for jobs, and runs the controller of their namespace if nobody else does.

It is a candidate for the Lease of the namespace, and yields to the controller of the cluster. A candidate only follows
Leases. It creates the controller when it leads, and ends the controller when it no longer leads.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, Self

from tf_dist.client.connection import Connection, refuse_beside_volcano
from tf_dist.client.leader_status import leader_status
from tf_dist.client.stored_jobs import namespace_missing_error
from tf_dist.cluster.api import TFJOBS, VOLCANO_JOBS, Cluster, Resource
from tf_dist.cluster.client.client_config import KubeContext
from tf_dist.cluster.concurrency import SYSTEM_RUNTIME, Service, ThreadRuntime
from tf_dist.cluster.lease import LEASE_REQUEST_TIMEOUT, boottime, system_namespace
from tf_dist.controller.controller import Controller
from tf_dist.controller.leader_election import LeaseLeadership
from tf_dist.controller.settings import ControllerSettings, JobRef, cluster_domain
from tf_dist.core.model.job import Dialect, JobKey
from tf_dist.core.pipeline.adoption import DriverChoice
from tf_dist.errors import ClusterError, Forbidden, NotFound, Rejected

_LOG = logging.getLogger(__name__)
_QUICK: Final = 2.0  # seconds for a request about a Lease while the host ends
_SOON: Final = 0.5  # seconds between two attempts at the start
_PATIENCE: Final = 20.0  # seconds for all attempts: longer than the duration of a Lease
_LOOK_EVERY: Final = 30.0  # seconds between two checks for changed permissions


class ControllerHost(Service):
    """A candidate to lead ``kinds`` of jobs in ``namespace``.

    ``on_change``: see ``Controller``. ``on_led`` is called, from any thread, when the controller starts or ends.
    ``clock`` and ``monotonic``: see ``LeaseLeadership``.
    """

    def __init__(
        self,
        place: KubeContext,
        cluster: Cluster,
        namespace: str,
        kinds: Collection[Resource],
        *,
        on_change: Callable[[JobRef], object] = lambda _: None,
        on_led: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = boottime,
        runtime: ThreadRuntime = SYSTEM_RUNTIME,
    ) -> None:
        self.kinds = frozenset(kinds)
        self._place, self._cluster, self._namespace = place, cluster, namespace
        self._on_change, self._on_led = on_change, on_led
        self._clock, self._runtime = clock, runtime
        self._settings = ControllerSettings(
            namespace=namespace, volcano_jobs=VOLCANO_JOBS in kinds, cluster_domain=cluster_domain()
        )
        self._stack = ExitStack()
        # Renewals are repeated anyway, and must not queue behind other requests.
        self._leases = self._stack.enter_context(place.cluster(connections=8, retries=0, timeout=LEASE_REQUEST_TIMEOUT))
        self.leadership = LeaseLeadership(
            self._leases,
            kinds,
            namespace,
            system=system_namespace(),
            clock=clock,
            monotonic=monotonic,
            runtime=runtime,
        )
        self._changed, self._stopped = runtime.event(), False
        self._thread = runtime.thread(self._run, "controller-host")
        self.controller: Controller | None = None  # while this host leads

    def start(self) -> Self:
        """Become a candidate. ClusterError immediately if no process leads and this host may not lead."""
        try:
            # Try to lead until the leader is known, and wait for an old Lease to expire.
            # Otherwise a missing permission would look like an endless wait.
            kind, until = next(iter(self.leadership.electors)), self._runtime.monotonic() + _PATIENCE
            pause = self._runtime.event()
            self.leadership.step()
            while not self.leadership.kinds() and self.leadership.problem() is None:
                status = leader_status(self._leases, kind, self._namespace, self._clock())
                if (status is not None and status.holder) or self._runtime.monotonic() >= until:
                    break
                pause.wait(_SOON)
                self.leadership.step()
            match self.leadership.problem():
                case NotFound() as error:
                    raise namespace_missing_error(error, self._namespace)
                case Forbidden() | Rejected() as error:
                    raise error
            self.leadership.listen(self._changed.set)
            self.leadership.start()
            self._thread.start()
        except BaseException:
            self.leadership.stop()
            self._stack.close()
            raise
        return self

    def stop(self) -> None:
        """End the controller, and release the Leases. A Lease that cannot be released soon expires."""
        self._stopped = True
        self._changed.set()
        self._thread.join()
        self._leases.hurry(_QUICK)
        self.leadership.stop()
        self._stack.close()

    def leads(self, kind: Resource) -> bool:
        """Whether the controller of this host reconciles jobs of this kind."""
        return self.controller is not None and self.leadership.remaining(kind) > 0

    def refused(self) -> Forbidden | None:
        """The missing permission without which the leader observes nothing; None if no permission is missing.

        A host that may not lead fails at the start. Later it waits for the next leader.
        """
        controller = self.controller
        return controller.informers.refused() if controller is not None else None

    def _run(self) -> None:
        while True:
            self._changed.clear()
            if self._stopped:
                break
            try:
                self._change()
            except Exception:
                _LOG.exception("cannot run the controller namespace=%s", self._namespace)
            self._changed.wait(_LOOK_EVERY)
        self._end()

    def _change(self) -> None:
        """Run a controller while this host leads. Replace it if its permissions changed."""
        leads = bool(self.leadership.kinds())
        if self.controller is not None and (not leads or self.controller.informers.rights_changed()):
            self._end()
        if leads and self.controller is None:
            controller = Controller(
                self._cluster,
                settings=self._settings,
                clock=self._clock,
                monotonic=self._runtime.monotonic,
                leadership=self.leadership,
                on_change=self._on_change,
                runtime=self._runtime,
            )
            try:
                controller.start()
            except BaseException:
                controller.stop()
                raise
            self.controller = controller
            self._on_led()

    def _end(self) -> None:
        controller, self.controller = self.controller, None
        if controller is not None:
            self._on_led()
            controller.stop()


@contextmanager
def hosted_controller(
    connection: Connection, dialect: Dialect, key: JobKey, *, choice: DriverChoice = DriverChoice.AUTO
) -> Iterator[ControllerHost | None]:
    """Be a candidate to lead the namespace of a job that is about to be created.

    None if the cluster has a controller, or ``choice`` is to wait for one.
    """
    if connection.place is None or choice is DriverChoice.CONTROLLER:
        yield None
        return
    kind = TFJOBS
    if dialect is Dialect.VOLCANO:
        refuse_beside_volcano(connection.cluster, key.name)
        kind = VOLCANO_JOBS
    # Lead only the job's kind: a role for TFJobs may include no permissions for Volcano's kinds.
    with ControllerHost(connection.place, connection.cluster, key.namespace, (kind,)) as host:
        yield host


def job_kinds(cluster: Cluster, namespace: str) -> tuple[Resource, ...]:
    """The kinds of jobs to lead. Their definitions may be installed later.

    They include Volcano's, if this process has the permission and Volcano is not installed.
    """
    try:
        cluster.list(VOLCANO_JOBS, namespace, limit=1)
        refuse_beside_volcano(cluster, "")
    except (Forbidden, Rejected):
        return (TFJOBS,)
    except NotFound:
        pass
    except ClusterError:
        return (TFJOBS,)
    return (TFJOBS, VOLCANO_JOBS)
