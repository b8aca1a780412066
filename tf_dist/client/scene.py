"""What a run looks like at one moment: how the job stands, and every replica with its progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tf_dist.client.following import LogLine
from tf_dist.client.jobs import views
from tf_dist.cluster.api import Object
from tf_dist.core.model import Job, ReplicaId
from tf_dist.core.observed import PodView
from tf_dist.core.progress import Progress, combined
from tf_dist.core.replica_view import ReplicaState, leaders_first, replica_states
from tf_dist.core.sizes import largest
from tf_dist.core.status import Status, state_word

NOTHING = Progress()


@dataclass(frozen=True, slots=True)
class Scene:
    """One moment. ``heard``: when each replica wrote its last line (monotonic seconds)."""

    job: Job
    status: Status = field(default_factory=Status)
    pods: tuple[PodView, ...] = ()
    replicas: tuple[ReplicaState, ...] = ()
    progress: Mapping[ReplicaId, Progress] = field(default_factory=dict)
    heard: Mapping[ReplicaId, float] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """The job's state in one word."""
        return state_word(self.status)

    @property
    def result(self) -> Progress:
        """What the job as a whole has come to: the leader's word counts first."""
        return combined(self.progress.get(replica, NOTHING) for replica in leaders_first(largest(self.job)))

    def with_objects(self, status: Status, pods: list[Object]) -> Scene:
        """The scene once job and pods have changed."""
        seen = views(self.job, pods)
        return replace(self, status=status, pods=seen, replicas=replica_states(self.job, status, seen))

    def with_lines(self, lines: list[LogLine], now: float) -> Scene:
        """The scene once some lines were read."""
        if not lines:
            return self
        progress, heard = dict(self.progress), dict(self.heard)
        for line in lines:
            heard[line.replica] = now
            if line.trains:
                progress[line.replica] = progress.get(line.replica, NOTHING).after(line.text)
        return replace(self, progress=progress, heard=heard)
