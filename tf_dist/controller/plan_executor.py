"""Plan executor: writes the actions of a plan to a cluster while this process leads the job."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Final

from tf_dist.cluster.api import (
    CONFIG_MAPS,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    SECRETS,
    SERVICES,
    VOLCANO_COMMANDS,
    Object,
    Resource,
)
from tf_dist.cluster.api_errors import is_invalid_object
from tf_dist.cluster.client.event_recorder import EventRecorder
from tf_dist.cluster.client.indexer import resource_version_of
from tf_dist.cluster.client.retries import fenced_by
from tf_dist.cluster.concurrency import SlowStart
from tf_dist.controller.informers.informer_set import InformerSet
from tf_dist.controller.leader_election import LeadershipLost
from tf_dist.controller.observability.metrics_interface import Metric
from tf_dist.controller.settings import ControllerContext, JobRef
from tf_dist.core.integrations.dispatch import kind_key
from tf_dist.core.model import names
from tf_dist.core.model.context import (
    Action,
    Create,
    Delete,
    DeleteJob,
    EmitEvent,
    EnsureKeys,
    PatchJob,
    Plan,
    Update,
    WriteStatus,
)
from tf_dist.core.model.job import Document
from tf_dist.core.model.status_codec import FIELD, has_embedded_memory, stored_status, with_embedded_memory
from tf_dist.core.podbuilder.volcano_plugins import KeyPair, lacks_keys, with_key_pair
from tf_dist.core.reconciler.job_events import combined_events, object_event
from tf_dist.core.reconciler.ownership import former_pod, selector_of_former_pods
from tf_dist.errors import AlreadyExists, ClusterError, Conflict, NotFound, Rejected

_LOG = logging.getLogger(__name__)
# Kinds without which no pod of a job can start.
_NEEDED: Final = (PODS, SERVICES, CONFIG_MAPS, NETWORK_POLICIES)
_KINDS: Final = {
    resource.kind: resource
    for resource in (PODS, SERVICES, CONFIG_MAPS, NETWORK_POLICIES, POD_DISRUPTION_BUDGETS, VOLCANO_COMMANDS)
}


_FormerPods = Callable[[str], list[Object]]


class _JobIsGone(NotFound):
    """The job is gone. No request was sent, so no failure is recorded."""


class NameConflict(ClusterError):
    """Another object has the name of an object of the job. ``leaving``: that object will be deleted soon."""

    def __init__(self, message: str, *, hint: str = "", leaving: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.leaving = leaving


class InvalidObject(Rejected):
    """The API server rejects an object of the job as invalid. Retries will fail, too."""


class StatusPruned(ClusterError):
    """The status was stored without the job's memory, so no other action for the job is allowed."""


class PlanExecutor:
    """Executes plans against a cluster, and updates the caches with the results.

    ``wrote`` is called with a job and the version of each object that was written as planned. ``remaining`` returns the
    seconds for which a job may certainly be written. It is called before each attempt of a request, and limits its
    time.
    """

    def __init__(
        self,
        context: ControllerContext,
        informers: InformerSet,
        events: EventRecorder,
        *,
        wrote: Callable[[JobRef, int], None],
        remaining: Callable[[JobRef], float],
    ) -> None:
        self._cluster, self._clock, self._recorder = context.cluster, context.clock, context.recorder
        self._informers = informers
        self._events = events
        self._wrote = wrote
        self._remaining = remaining
        # Kinds whose CRD prunes status.tfDist: see ``with_embedded_memory``.
        self._pruning: set[Resource] = set()
        self._runtime = context.runtime
        self._creators: Executor | None = None
        self._side_by_side: SlowStart | None = None

    def start(self, threads: int) -> None:
        """Create the pods of a job in parallel from now on, with ``threads`` threads for all jobs."""
        self._creators = self._runtime.pool(threads, "pod-creator")
        self._side_by_side = SlowStart(self._runtime, self._creators, threads)

    def stop(self) -> None:
        """End the threads. Call it after the last plan has been executed."""
        if self._creators is not None:
            self._creators.shutdown(wait=True, cancel_futures=True)

    def apply(self, ref: JobRef, stored: Object, plan: Plan) -> None:
        """Execute ``plan`` for the job ``stored``.

        Raises Conflict if the job has changed since it was read, NotFound if the job or its namespace is gone,
        LeadershipLost, NameConflict, and any other error of the cluster. Earlier actions of the plan remain in effect.
        """
        events: list[EmitEvent] = []
        former = self._former_pods(ref)
        try:
            for pods, actions in groupby(
                plan.actions, lambda action: isinstance(action, Create) and action.body["kind"] == PODS.kind
            ):
                tasks = [partial(self._act, ref, stored, action, events, former) for action in actions]
                if pods and self._side_by_side is not None:
                    self._side_by_side.run(tasks)
                else:
                    for task in tasks:
                        task()
        finally:
            # Emit Events last, so that no pod waits for them, and together, so that similar Events are combined.
            self._events.emit(ref.resource, ref.namespace, stored, *combined_events(events))

    def _act(self, ref: JobRef, stored: Object, action: Action, events: list[EmitEvent], former: _FormerPods) -> None:
        """Execute an action. Events about an object that it creates or deletes are added to ``events``."""
        self._permission(ref)  # the process may have been suspended between two writes
        if isinstance(action, EmitEvent):
            events.append(action)
            return
        told = action if isinstance(action, Create | Delete) else None
        version = str(stored.get("apiVersion"))
        try:
            with fenced_by(partial(self._permission, ref)):
                done = self._execute(ref, stored, action, former)
        except Exception as error:
            self._recorder.record(Metric.ACTIONS, type(action).__name__, type(error).__name__)
            if told is not None and isinstance(error, ClusterError) and not isinstance(error, _JobIsGone):
                events += filter(None, (object_event(version, told, error),))
            raise
        self._recorder.record(Metric.ACTIONS, type(action).__name__, "ok")
        if told is not None and done:
            events += filter(None, (object_event(version, told),))

    def _permission(self, ref: JobRef) -> float:
        seconds = self._remaining(ref)
        if seconds <= 0:
            raise LeadershipLost(f"{ref} is no longer led by this controller")
        return seconds

    def _execute(self, ref: JobRef, stored: Object, action: Action, former: _FormerPods) -> bool:
        """Execute an action. Returns False if the object existed, or was gone, already."""
        match action:
            case WriteStatus():
                self._write_status(ref, stored, action.status)
            case Create():
                return self._create(ref, stored, action.body, former)
            case EnsureKeys():
                self._ensure_keys(ref, stored, action.body)
            case Update():
                kind, patched = self._kind(action.kind), action.subresource
                written = self._cluster.patch(kind, ref.namespace, action.name, action.patch, subresource=patched)
                self._informers.wrote(kind, written)
            case Delete():
                return self._delete(self._kind(action.kind), ref.namespace, action.name, action.uid)
            case PatchJob():
                written = self._cluster.patch(ref.resource, ref.namespace, ref.name, action.patch)
                self._informers.wrote(ref.resource, written)
            case DeleteJob():
                self._delete(ref.resource, ref.namespace, ref.name, stored["metadata"]["uid"])
        return True

    # The status

    def _write_status(self, ref: JobRef, stored: Object, status: Document) -> None:
        """Write the status unless the job has changed since it was read.

        Actions that depend on the memory follow only after the server's response contains the memory.
        """
        if has_embedded_memory(stored.get("status")):
            self._pruning.add(ref.resource)
        known, embedded = ref.resource in self._pruning, partial(with_embedded_memory, status, ref.resource.kind)
        written = self._replace_status(ref, stored, embedded() if known else status)
        if FIELD in (written.get("status") or {}):
            self._pruning.discard(ref.resource)
        elif not known:
            self._pruning.add(ref.resource)
            written = self._replace_status(ref, written, embedded())
        self._wrote(ref, resource_version_of(written))
        self._informers.wrote(ref.resource, written)
        if FIELD not in stored_status(written):
            raise StatusPruned(
                f"the definition of {ref.resource.plural}.{ref.resource.group} does not store what tf-dist writes "
                "into the status",
                hint="install tf-dist's definition: tf-dist install --check shows how",
            )

    def _replace_status(self, ref: JobRef, stored: Object, status: Document) -> Object:
        body = {**stored, "status": status}
        return self._cluster.replace(ref.resource, ref.namespace, ref.name, body, subresource="status")

    # Objects of a job

    def _kind(self, name: str) -> Resource:
        """The kind of that name. The names of gang schedulers' kinds contain their group."""
        return _KINDS.get(name) or self._informers.schedulers.resource(name)

    def _create(self, ref: JobRef, stored: Object, body: Object, former_pods: _FormerPods) -> bool:
        resource = self._kind(kind_key(body))
        if not self._wanted(ref, stored):
            raise _JobIsGone(f"{ref} is gone, or its deletion was requested")
        created = True
        if resource == PODS and (selector := selector_of_former_pods(stored, body)):
            former = former_pod(body, former_pods(selector))
            if former is not None:
                self._informers.wrote(resource, self._adopt(resource, ref, former, body))
                return False
        try:
            there = self._cluster.create(resource, ref.namespace, body)
        except AlreadyExists:
            there = self._adopt(resource, ref, self._own(resource, ref, body["metadata"]["name"], stored), body)
            created = False
        except Rejected as error:
            if resource in _NEEDED and is_invalid_object(error):
                raise InvalidObject(str(error), hint=error.hint) from error
            raise
        if created:
            self._wrote(ref, resource_version_of(there))
        self._informers.wrote(resource, there)
        return created

    def _wanted(self, ref: JobRef, stored: Object) -> bool:
        """Whether the cached job still exists and is not being deleted.

        Objects that are created later use quota and nodes until the garbage collector deletes them.
        """
        known = self._informers.job(ref)
        if known is None or known["metadata"]["uid"] != stored["metadata"]["uid"]:
            return False
        return "deletionTimestamp" not in known["metadata"]

    def _former_pods(self, ref: JobRef) -> _FormerPods:
        """A function that lists pods that another operator created under other names: one list for each selector."""
        lock, found = self._runtime.lock(), dict[str, list[Object]]()

        def listed(selector: str) -> list[Object]:
            with lock:
                if selector not in found:
                    found[selector] = list(self._cluster.list(PODS, ref.namespace, labels=selector).items)
                return found[selector]

        return listed

    def _ensure_keys(self, ref: JobRef, stored: Object, body: Object) -> None:
        """Create a missing Secret. Secrets are not watched, because the right to list Secrets exposes all of them."""
        name = body["metadata"]["name"]
        try:
            self._own(SECRETS, ref, name, stored)
        except NotFound:
            try:
                filled = with_key_pair(body, _generate_key_pair()) if lacks_keys(body) else body
                self._cluster.create(SECRETS, ref.namespace, filled)
            except AlreadyExists:
                self._own(SECRETS, ref, name, stored)

    def _adopt(self, resource: Resource, ref: JobRef, there: Object, body: Object) -> Object:
        """Label an object that the job controls but that lacks tf-dist's labels: a training-operator created it.

        From then on, the object is watched, counted and deleted like other objects of the job.
        """
        if names.owner_key(there) or not names.owner_key(body):
            return there
        name, metadata = there["metadata"]["name"], there["metadata"]
        if "deletionTimestamp" in metadata:
            raise NameConflict(
                f"{resource.kind} {ref.namespace}/{name} of the previous controller is being deleted", leaving=True
            )
        _LOG.info("adopted object of previous controller: kind=%s object=%s/%s", resource.kind, ref.namespace, name)
        patch = {"metadata": {"uid": metadata["uid"], "labels": body["metadata"]["labels"]}}
        return self._cluster.patch(resource, ref.namespace, name, patch)

    def _own(self, resource: Resource, ref: JobRef, name: str, stored: Object) -> Object:
        """The existing object if the job owns it, because a response was lost or the cache was older than the object.

        Raises NameConflict if the job does not own it.
        """
        there = self._cluster.get(resource, ref.namespace, name)
        owners = there["metadata"].get("ownerReferences") or ()
        uid, controller = stored["metadata"]["uid"], next((one for one in owners if one.get("controller")), None)
        if controller is not None and controller.get("uid") == uid:
            return there
        # The garbage collector deletes the objects of an earlier job of this name.
        earlier = any(
            (one.get("kind"), one.get("name")) == (ref.resource.kind, ref.name) and one.get("uid") != uid
            for one in owners
        )
        leaving = earlier or "deletionTimestamp" in there["metadata"]
        if earlier:
            owner = f"an earlier {ref.resource.kind} {ref.name}"
        else:
            owner = f"{controller.get('kind')} {controller.get('name')}" if controller else "no controller"
        raise NameConflict(
            f"{resource.kind} {ref.namespace}/{name} exists already and belongs to {owner}, not to this job",
            hint="the job continues when it is deleted"
            if leaving
            else f"rename the job, or ask the owner of {resource.kind} {name} to remove it",
            leaving=leaving,
        )

    def _delete(self, resource: Resource, namespace: str, name: str, uid: str) -> bool:
        try:
            self._cluster.delete(resource, namespace, name, uid=uid)
        except NotFound:
            pass
        except Conflict:
            # A different uid is not the only reason for a conflict.
            with suppress(NotFound):
                if self._cluster.get(resource, namespace, name)["metadata"]["uid"] == uid:
                    raise
        else:
            self._informers.deleted(resource, namespace, name, uid, self._clock())
            return True
        _LOG.debug("object is gone already: kind=%s object=%s/%s", resource.kind, namespace, name)
        self._informers.gone(resource, namespace, name, uid)
        return False


def _generate_key_pair() -> KeyPair:
    """A new RSA pair, with the formats and the size of Volcano's plugin. This takes about a tenth of a second."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.TraditionalOpenSSL, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return KeyPair(private.decode(), public.decode() + "\n")
