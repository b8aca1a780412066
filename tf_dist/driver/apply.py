"""Doing what a plan says: in order, idempotent, and stopping at the first thing that makes the rest out of date."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from tf_dist.cluster.api import CONFIG_MAPS, NETWORK_POLICIES, PODS, SERVICES, Cluster, Object, Resource
from tf_dist.cluster.permission import permitted_by
from tf_dist.core.actions import Action, Create, Delete, DeleteJob, Emit, Plan, Update, WriteStatus
from tf_dist.core.model import Document
from tf_dist.core.pruned_status import carried, carries
from tf_dist.core.schedulers.table import kind_key
from tf_dist.core.status_codec import FIELD, stored_status
from tf_dist.driver.caches import Caches
from tf_dist.driver.events import EventWriter
from tf_dist.driver.mandate import NotDriving
from tf_dist.driver.recorder import Recorder
from tf_dist.driver.refs import JobRef
from tf_dist.errors import AlreadyExists, ClusterError, Conflict, NotFound

_LOG = logging.getLogger(__name__)
_KINDS: Final = {resource.kind: resource for resource in (PODS, SERVICES, CONFIG_MAPS, NETWORK_POLICIES)}


class NameTaken(ClusterError):
    """An object of that name is there and is not the job's."""


class MemoryPruned(ClusterError):
    """The status was stored without the job's memory, so that nothing may be done for the job."""


class Applier:
    """Executes plans against a cluster, as long as ``may_act`` says so; the caches learn what came of it.

    ``clock``: epoch seconds. ``remaining``: for how many seconds the right to act surely still holds; it is asked
    before every attempt of a request, and bounds how long one takes.
    """

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        *,
        clock: Callable[[], float],
        events: EventWriter,
        may_act: Callable[[], bool],
        remaining: Callable[[], float],
        recorder: Recorder,
    ) -> None:
        self._cluster = cluster
        self._caches = caches
        self._clock = clock
        self._events = events
        self._may_act = may_act
        self._remaining = remaining
        self._recorder = recorder
        # Kinds whose definition prunes status.tfDist: see core.pruned_status.
        self._pruning: set[Resource] = set()

    def apply(self, ref: JobRef, stored: Object, plan: Plan) -> None:
        """Execute ``plan`` for the job ``stored``.

        Raises Conflict when the job has changed since it was seen (look again), NotFound when it or its namespace is
        gone, NotDriving when the mandate has ended, NameTaken, and whatever else the cluster answers; what was done
        until then stands.
        """
        for action in plan.actions:
            # Between two writes this process may have slept for an hour.
            if not self._may_act():
                raise NotDriving(f"{ref}: no longer driven from here")
            try:
                with permitted_by(partial(self._permission, ref)):
                    self._execute(ref, stored, action)
            except Exception as error:
                self._recorder.acted(type(action).__name__, type(error).__name__)
                raise
            self._recorder.acted(type(action).__name__, "ok")

    def _permission(self, ref: JobRef) -> float:
        seconds = self._remaining()
        if seconds <= 0:
            raise NotDriving(f"{ref}: no longer driven from here")
        return seconds

    def _execute(self, ref: JobRef, stored: Object, action: Action) -> None:
        match action:
            case WriteStatus():
                self._write_status(ref, stored, action.status)
            case Create():
                self._create(ref, stored, action.body)
            case Update():
                self._update(ref, action)
            case Delete():
                self._delete(self._kind(action.kind), ref.namespace, action.name, action.uid)
            case DeleteJob():
                self._delete(ref.resource, ref.namespace, ref.name, stored["metadata"]["uid"])
            case Emit():
                self._events.emit(ref.resource, ref.namespace, stored, action)

    # The status

    def _write_status(self, ref: JobRef, stored: Object, status: Document) -> None:
        """Write the status unless the job has changed since it was read.

        Nothing that depends on its memory is done before the server has answered that it keeps it.
        """
        if carries(stored.get("status")):
            self._pruning.add(ref.resource)
        known = ref.resource in self._pruning
        written = self._replace_status(ref, stored, carried(status, ref.resource.kind) if known else status)
        if FIELD in (written.get("status") or {}):
            self._pruning.discard(ref.resource)
        elif not known:
            self._pruning.add(ref.resource)
            written = self._replace_status(ref, written, carried(status, ref.resource.kind))
        self._caches.wrote(ref.resource, written)
        if FIELD not in stored_status(written):
            raise MemoryPruned(
                f"the definition of {ref.resource.plural}.{ref.resource.group} keeps nothing of what tf-dist remembers",
                hint="install tf-dist's definition: tf-dist install --check shows how",
            )

    def _replace_status(self, ref: JobRef, stored: Object, status: Document) -> Object:
        body = {**stored, "status": status}
        return self._cluster.replace(ref.resource, ref.namespace, ref.name, body, subresource="status")

    # What a job owns

    def _kind(self, name: str) -> Resource:
        """The kind of that name; one of a gang scheduler has its group in it."""
        return _KINDS.get(name) or self._caches.schedulers.resource(name)

    def _update(self, ref: JobRef, action: Update) -> None:
        kind = self._kind(action.kind)
        written = self._cluster.patch(kind, ref.namespace, action.name, action.patch, subresource=action.subresource)
        self._caches.wrote(kind, written)

    def _create(self, ref: JobRef, stored: Object, body: Object) -> None:
        resource = self._kind(kind_key(body))
        try:
            there = self._cluster.create(resource, ref.namespace, body)
        except AlreadyExists:
            there = self._own(resource, ref, body["metadata"]["name"], stored["metadata"]["uid"])
        self._caches.wrote(resource, there)

    def _own(self, resource: Resource, ref: JobRef, name: str, uid: str) -> Object:
        """That it exists is fine if it is the job's: an answer was lost, or the caches were older than the object."""
        there = self._cluster.get(resource, ref.namespace, name)
        owners = there["metadata"].get("ownerReferences") or ()
        if any(owner.get("uid") == uid for owner in owners):
            return there
        owner = f"{owners[0].get('kind')} {owners[0].get('name')}" if owners else "nobody's"
        raise NameTaken(
            f"{resource.kind} {ref.namespace}/{name} exists already and is {owner}, not this job's",
            hint=f"delete it (kubectl delete {resource.plural} {name} -n {ref.namespace}) or rename the job",
        )

    def _delete(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        try:
            self._cluster.delete(resource, namespace, name, uid=uid)
        except NotFound:
            self._gone(resource, namespace, name, uid)
        except Conflict:
            if self._is_there(resource, namespace, name, uid):
                raise
            self._gone(resource, namespace, name, uid)
        else:
            self._caches.deleted(resource, namespace, name, uid, self._clock())

    def _is_there(self, resource: Resource, namespace: str, name: str, uid: str) -> bool:
        """Whether a refused deletion was about this very object: the fence is not the only reason for a conflict."""
        try:
            return bool(self._cluster.get(resource, namespace, name)["metadata"]["uid"] == uid)
        except NotFound:
            return False

    def _gone(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        _LOG.debug("%s %s/%s is gone already", resource.kind, namespace, name)
        self._caches.gone(resource, namespace, name, uid)
