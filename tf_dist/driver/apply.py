"""Doing what a plan says: in order, idempotent, and stopping at the first thing that makes the rest out of date."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from tf_dist.cluster.api import CONFIG_MAPS, EVENTS, NETWORK_POLICIES, PODS, SERVICES, Cluster, Object, Resource
from tf_dist.core.actions import Action, Create, Delete, DeleteJob, Emit, Plan, Update, WriteStatus
from tf_dist.core.names import short_hash
from tf_dist.core.times import format_micro_time, format_time
from tf_dist.driver.view import JobRef
from tf_dist.errors import AlreadyExists, ClusterError, Conflict, NotFound

_LOG = logging.getLogger(__name__)
_KINDS: Final = {resource.kind: resource for resource in (PODS, SERVICES, CONFIG_MAPS, NETWORK_POLICIES)}
_MOST_CHARACTERS: Final = 1024


class NameTaken(ClusterError):
    """An object of that name is there and is not the job's."""


class Applier:
    """Executes plans against a cluster. ``clock``: epoch seconds; ``component``: the name in events."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float], component: str) -> None:
        self._cluster = cluster
        self._clock = clock
        self._component = component

    def apply(self, ref: JobRef, stored: Object, plan: Plan) -> None:
        """Execute ``plan`` for the job ``stored``.

        Raises Conflict when the job has changed since it was listed (look again), NotFound when it or its namespace is
        gone, NameTaken, and whatever else the cluster answers; what was done until then stands.
        """
        for action in plan.actions:
            self._execute(ref, stored, action)

    def _execute(self, ref: JobRef, stored: Object, action: Action) -> None:
        match action:
            case WriteStatus():
                body = {**stored, "status": action.status}
                self._cluster.replace(ref.resource, ref.namespace, ref.name, body, subresource="status")
            case Create():
                self._create(ref, stored, action.body)
            case Update():
                self._cluster.patch(_KINDS[action.kind], ref.namespace, action.name, action.patch)
            case Delete():
                self._delete(_KINDS[action.kind], ref.namespace, action.name, action.uid)
            case DeleteJob():
                self._delete(ref.resource, ref.namespace, ref.name, stored["metadata"]["uid"])
            case Emit():
                self.emit(ref, stored, action)

    def _create(self, ref: JobRef, stored: Object, body: Object) -> None:
        resource, name = _KINDS[body["kind"]], body["metadata"]["name"]
        try:
            self._cluster.create(resource, ref.namespace, body)
        except AlreadyExists:
            self._check_owner(resource, ref, name, stored["metadata"]["uid"])

    def _check_owner(self, resource: Resource, ref: JobRef, name: str, uid: str) -> None:
        """That it exists is fine if it is the job's: an answer was lost, or the list was older than the object."""
        there = self._cluster.get(resource, ref.namespace, name)
        owners = there["metadata"].get("ownerReferences") or ()
        if not any(owner.get("uid") == uid for owner in owners):
            owner = f"{owners[0].get('kind')} {owners[0].get('name')}" if owners else "nobody's"
            raise NameTaken(
                f"{resource.kind} {ref.namespace}/{name} exists already and is {owner}, not this job's",
                hint=f"delete it (kubectl delete {resource.plural} {name} -n {ref.namespace}) or rename the job",
            )

    def _delete(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        try:
            self._cluster.delete(resource, namespace, name, uid=uid)
        except (NotFound, Conflict):
            _LOG.debug("%s %s/%s is gone already", resource.kind, namespace, name)

    def emit(self, ref: JobRef, stored: Object, event: Emit) -> None:
        """Write a Kubernetes Event on the job. What is told about a job must never stop the job."""
        now = self._clock()
        try:
            self._cluster.create(EVENTS, ref.namespace, self._event(ref, stored, event, now))
        except ClusterError as error:
            _LOG.info("no event %s on %s: %s", event.reason, ref, error)

    def _event(self, ref: JobRef, stored: Object, event: Emit, now: float) -> Object:
        involved = {
            "apiVersion": stored.get("apiVersion", ref.resource.api_version),
            "kind": ref.resource.kind,
            "name": ref.name,
            "namespace": ref.namespace,
            "uid": stored["metadata"]["uid"],
        }
        moment = format_time(now)
        suffix = short_hash(stored["metadata"]["uid"], format_micro_time(now), event.reason, length=12)
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{ref.name}.{suffix}", "namespace": ref.namespace},
            "involvedObject": involved,
            "type": event.type,
            "reason": event.reason,
            "message": event.message[:_MOST_CHARACTERS],
            "source": {"component": self._component},
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }
