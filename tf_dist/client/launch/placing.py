"""The job of a step in the cluster: created, or the one of the last try gone on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tf_dist.client.bundle import Entry
from tf_dist.client.jobs import StoredJob
from tf_dist.client.launch import contract
from tf_dist.client.patience import PASSING, Patience
from tf_dist.client.submitting import create_job, kind_of
from tf_dist.client.watching import JobWatch, Listed, Signalled
from tf_dist.cluster.api import PODS, Cluster
from tf_dist.core.adoption import Adoption, adoption
from tf_dist.core.dialects import suspend_patch
from tf_dist.driver.signals import Signals
from tf_dist.errors import AlreadyExists, Conflict, NotFound

_ATTEMPTS: Final = 5


class Interrupted(Exception):
    """A signal came before the job was there; ``number``: which."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Placing:
    """``say`` is told what is done and why."""

    def __init__(self, cluster: Cluster, entry: Entry, namespace: str, signals: Signals, say: Callable[[str], object]):
        self._cluster = cluster
        self._entry = entry
        self._namespace = namespace
        self._signals = signals
        self._say = say

    def place(self, annotations: Mapping[str, str], workdir: str | None) -> StoredJob:
        """The job as it is there now. ``annotations``, ``workdir``: of one that is created, see ``create_job``.

        AlreadyExists when somebody else's has its name; Interrupted; ClusterError.
        """
        for _ in range(_ATTEMPTS):
            found = self._find()
            if found is None:
                return create_job(self._cluster, self._entry, self._namespace, workdir=workdir, annotations=annotations)
            self._require_ours(found)
            if not found.stored["metadata"].get("deletionTimestamp"):
                reported = contract.REPORTED in _annotations(found)
                if adoption(found.job, found.status, reported=reported) is Adoption.JOIN:
                    return self._join(found)
            self._clear_away(found)
        raise Conflict(
            f"job {self._entry.job.key.name} comes again each time that it is deleted", hint="see who makes it"
        )

    def _find(self) -> StoredJob | None:
        resource = kind_of(self._entry)
        try:
            return StoredJob(resource, self._cluster.get(resource, self._namespace, self._entry.job.key.name))
        except NotFound:
            return None

    def _require_ours(self, found: StoredJob) -> None:
        labels = found.stored["metadata"].get("labels") or {}
        mine = self._entry.document["metadata"].get("labels") or {}
        if mine.get(contract.WORKFLOW_UID, "") != labels.get(contract.WORKFLOW_UID, "-"):
            raise AlreadyExists(
                f"there is a job {found.name} in namespace {self._namespace}, and it is not this step's",
                hint="give the job another metadata.name",
            )

    def _join(self, found: StoredJob) -> StoredJob:
        self._say(f"goes on with {found.shown}, which an earlier try of this step has made")
        if contract.STOPPED_BY not in _annotations(found):
            return found
        self._say(f"resumes {found.shown}, which that try had suspended")
        patch = suspend_patch(found.stored, False)
        metadata = patch.setdefault("metadata", {})
        metadata.setdefault("annotations", {})[contract.STOPPED_BY] = None
        patched = self._cluster.patch(found.resource, found.namespace, found.name, patch)
        return StoredJob(found.resource, patched)

    def _clear_away(self, found: StoredJob) -> None:
        """Delete it, and wait until it and its pods are gone: a new one has pods of the same names."""
        self._say(f"{found.shown} of an earlier try has ended: deletes it, and starts anew")
        patience = Patience()
        while True:
            try:
                self._cluster.delete(found.resource, found.namespace, found.name, uid=found.uid)
            except (NotFound, Conflict):
                pass
            except PASSING as error:
                patience.failed(error)
                continue
            break
        with JobWatch(self._cluster, found) as watch:
            self._signals.listen(lambda number: watch.put(Signalled(number)))
            listed = False
            while watch.job is not None or watch.pods or not listed:
                for item in watch.take():
                    listed = listed or (isinstance(item, Listed) and item.resource is PODS)
                    if isinstance(item, Signalled):
                        raise Interrupted(item.number)


def _annotations(found: StoredJob) -> Mapping[str, str]:
    return found.stored["metadata"].get("annotations") or {}
