"""Pending admissions: recorded in a Lease before any verdict is written, for the next admission leader.

Admission decides on everything there is, but each verdict is written into a job of its own, and a process may sleep, or
a request hang, between the two. Were a successor to decide meanwhile, both could give the same room away. Therefore:

- Before the first verdict of a batch is written, its jobs are named in one object that all admission leaders share (a
  Lease, for that kind is at hand wherever there are drivers). The write carries the version that this leader saw last,
  so it fails once a successor has *opened* the object.
- A leader that opens it touches every job that is still named there. Either the verdict is in the job by then, and
  counts, or it can never get there any more, since a status is only written over the version that it was decided on.
- A leader whose verdicts are all written empties the list, so that its successor has no old jobs to touch.

So two leaders never give away the same capacity, though a process sleeps at any point, and no clock has a part in it.
Only a job that a leader may not touch (403, twice in a row) is passed over: it stays in the list, for one that may. A
late verdict of the leader before could still reach it, which is at most that one place given twice; waiting for a right
that may never come would hold up all jobs.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from tf_dist.cluster.api import JOB_KINDS, LEASES, Cluster, Object
from tf_dist.cluster.api_errors import Unauthorized
from tf_dist.controller.driver_settings import MAX_PENDING_ADMISSIONS, JobRef
from tf_dist.controller.leases.leadership import LeadershipLost, Standalone
from tf_dist.controller.leases.lease import (
    LeaseRef,
    create_lease,
)
from tf_dist.core.api import names
from tf_dist.errors import AlreadyExists, Conflict, Forbidden, NotFound, Rejected

_LOG = logging.getLogger(__name__)

ADMITTING_ANNOTATION: Final = names.ANNOTATION_PREFIX + "admitting"
"""Annotation of a Lease: the jobs that its admission leader is about to admit."""
LEADER_ANNOTATION: Final = names.ANNOTATION_PREFIX + "arbiter"
"""Annotation of a Lease: which admission leader wrote the list of jobs."""
FENCED_ANNOTATION: Final = names.ANNOTATION_PREFIX + "fenced"
"""Annotation that tf-dist writes: on a job, a mark of a new admission leader; a late write of the one before fails."""

# Jobs that come while the list is nearly full wait until there is room for such a part of it: each write carries all.
_LEAST_SHARE: Final = 5


class LeasePendingAdmissions:
    """Kept in annotations of the Lease ``ref``, that has no holder. ``touched`` is given each job that was touched.

    ``max_jobs``: so many jobs are named at a time. ``may_act``: asked before every write, as a process that slept
    meanwhile may have lost the right to drive.
    """

    def __init__(
        self,
        cluster: Cluster,
        ref: LeaseRef,
        touched: Callable[[JobRef, Object], None],
        *,
        max_jobs: int = MAX_PENDING_ADMISSIONS,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        self._cluster = cluster
        self._ref = ref
        self._touched = touched
        self._max_jobs = max_jobs
        self._may_act = may_act
        self._stored: Object | None = None
        self._epoch: object = None
        self._jobs: dict[str, JobRef] = {}
        self._settled: set[str] = set()
        # While it is being opened: what the Lease carries until another leader opens it, and the jobs touched so far.
        self._mark = ""
        self._fenced: set[str] = set()
        self._refused: dict[str, JobRef] = {}  # jobs that may not be touched: they stay listed
        self._unsettled: frozenset[str] | None = None  # what was listed when there was last too little room
        self._lock = threading.Lock()

    def open(self, epoch: object) -> bool:
        """Begin under the right to decide that was won as ``epoch``; False: it had begun.

        It shuts out the leader before, and makes sure of what that one had begun; after an error it goes on where it
        was. ClusterError: give nothing away. Only what is seen after this is all that was given away before.
        """
        if self._epoch == epoch and self._stored is not None:
            return False
        self._stored = None
        stored = self._get()
        left = _load_jobs(stored)
        if not self._mark or (stored["metadata"].get("annotations") or {}).get(LEADER_ANNOTATION) != self._mark:
            self._mark, self._fenced, self._refused = uuid.uuid4().hex, set(), {}
        stored = self._write(stored, left, leader=self._mark)
        self._fence_all({uid: ref for uid, ref in left.items() if uid not in self._fenced})
        self._refused = dict(list(self._refused.items())[: self._max_jobs // 2])
        with self._lock:
            self._jobs, self._settled = {}, set()
        self._stored = self._write(stored, {})
        self._epoch = epoch
        # The jobs that are listed from now on must be touched anew.
        self._mark, self._fenced, self._unsettled = "", set(), None
        return True

    def room(self, waiting: int) -> int:
        """How many of so many more jobs are to be written down now; 0 while there is room for too few of them.

        They are taken when more of the listed jobs are settled, or at the next call if none was until then.
        """
        kept = self.declared()
        room = min(waiting, max(0, self._max_jobs - len(self._refused) - len(kept)))
        too_few = room < min(waiting, self._max_jobs // _LEAST_SHARE)
        if not room or (too_few and self._unsettled != kept):
            self._unsettled = kept
            return 0
        return room

    def record_pending(self, jobs: Mapping[str, JobRef]) -> frozenset[str]:
        """Write down as many of these jobs (by uid) as there is room for; those that may be given a place now.

        What has been settled since is left out. LeadershipLost: another leader has opened it.
        """
        with self._lock:
            kept = {uid: ref for uid, ref in self._jobs.items() if uid not in self._settled}
        new = dict(list(jobs.items())[: max(0, self._max_jobs - len(self._refused) - len(kept))])
        if not new:
            return frozenset()
        stored, self._stored = self._stored, None  # unknown until the server has answered
        if stored is None:
            raise LeadershipLost("the list of intended admissions is not open")
        # Also when all of them are listed already: that they still are shows in the answer.
        self._stored = self._write(stored, kept | new)
        with self._lock:
            self._jobs = kept | new
            self._settled = (self._settled & kept.keys()) - new.keys()
        return frozenset(new)

    def settle(self, uids: Iterable[str]) -> None:
        """These jobs have their verdict in writing, or will surely not get it: leave them out of the next list."""
        with self._lock:
            self._settled.update(uid for uid in uids if uid in self._jobs)

    def declared(self) -> frozenset[str]:
        """What the list names and is not settled."""
        with self._lock:
            return frozenset(self._jobs) - self._settled

    def forget_settled(self, *, stopping: bool = False) -> None:
        """Empty the list, by one write, if all that it names is settled; else the next write leaves it out.

        ``stopping``: the caller has made sure that it still leads. LeadershipLost: another leader has opened it.
        """
        with self._lock:
            if self._stored is None or not self._jobs or self._jobs.keys() - self._settled:
                return
        stored, self._stored = self._stored, None  # as above
        self._stored = self._write(stored, {}, stopping=stopping)
        with self._lock:
            self._jobs, self._settled = {}, set()

    def _get(self) -> Object:
        try:
            return self._cluster.get(LEASES, *self._ref)
        except NotFound:
            body = {"metadata": {"namespace": self._ref.namespace, "name": self._ref.name}, "spec": {}}
            with suppress(AlreadyExists):
                return create_lease(self._cluster, self._ref, body)
            return self._cluster.get(LEASES, *self._ref)

    def _check(self) -> None:
        if not self._may_act():
            raise LeadershipLost("the right to drive has ended")

    def _write(self, stored: Object, jobs: Mapping[str, JobRef], leader: str = "", *, stopping: bool = False) -> Object:
        if not stopping:
            self._check()
        metadata = stored["metadata"]
        annotations = {
            **(metadata.get("annotations") or {}),
            ADMITTING_ANNOTATION: _dump_jobs({**self._refused, **jobs}),
        }
        if leader:
            annotations[LEADER_ANNOTATION] = leader
        try:
            body = {**stored, "metadata": {**metadata, "annotations": annotations}}
            return self._cluster.replace(LEASES, *self._ref, body)
        except (Conflict, NotFound) as error:
            raise LeadershipLost(f"another driver admits jobs now ({self._ref})") from error

    def _fence_all(self, jobs: Mapping[str, JobRef]) -> None:
        """Touch all of these jobs but those that may not be touched; Forbidden for the first time that one may not.

        A server that has just started, or a webhook, may refuse what it allows a moment later.
        """
        problem: Forbidden | None = None
        for uid, ref in jobs.items():
            try:
                self._fence(uid, ref)
            except Unauthorized:
                raise  # all jobs would be refused
            except Forbidden as error:
                if uid not in self._refused:
                    problem = error
                self._refused[uid] = ref
                _LOG.warning("failed to touch listed job: job=%s error=%s", ref, error)
            else:
                self._refused.pop(uid, None)
                self._fenced.add(uid)
        if problem is not None:
            raise problem

    def _fence(self, uid: str, ref: JobRef) -> None:
        patch = {"metadata": {"uid": uid, "annotations": {FENCED_ANNOTATION: uuid.uuid4().hex}}}
        self._check()
        with suppress(NotFound):
            try:
                self._touched(ref, self._cluster.patch(ref.resource, ref.namespace, ref.name, patch))
            except (Conflict, Rejected, Forbidden):
                # Another job of that name may not be touched; one that may not be touched may get its place yet.
                if self._is_there(uid, ref):
                    raise

    def _is_there(self, uid: str, ref: JobRef) -> bool:
        """Whether it is the same job still, as far as that may be read; NotFound."""
        try:
            return bool(self._cluster.get(ref.resource, ref.namespace, ref.name)["metadata"]["uid"] == uid)
        except Forbidden:
            return True


PendingAdmissions = LeasePendingAdmissions | Standalone
"""Where an admission leader records what it is about to admit."""


def _dump_jobs(jobs: Mapping[str, JobRef]) -> str:
    rows = [[ref.resource.plural, ref.namespace, ref.name, uid] for uid, ref in sorted(jobs.items())]
    return json.dumps(rows, separators=(",", ":"))


def _load_jobs(stored: Object) -> dict[str, JobRef]:
    """The jobs named in a list; an unreadable one names none."""
    kinds = {kind.plural: kind for kind in JOB_KINDS}
    found: dict[str, JobRef] = {}
    with suppress(KeyError, TypeError, ValueError, RecursionError):
        for row in json.loads(stored["metadata"]["annotations"][ADMITTING_ANNOTATION]):
            plural, namespace, name, uid = (part if isinstance(part, str) else "" for part in row)
            if plural in kinds and namespace and name and uid:
                found[uid] = JobRef(kinds[plural], namespace, name)
    return found
