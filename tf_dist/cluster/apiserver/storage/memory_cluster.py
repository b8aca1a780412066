"""MemoryCluster: the Cluster protocol over a store in this process, with Kubernetes' semantics."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tf_dist.cluster import api
from tf_dist.cluster.api import ALL_LINES, LogOptions, Object, ObjectList, PatchType, Resource, Stream, WatchEvent
from tf_dist.cluster.api_errors import AdmissionDenied, BadRequest, Invalid, UnsupportedMediaType
from tf_dist.cluster.apiserver.storage.api_resources import BUILTIN_KINDS, CRDS, Kind, ResourceRegistry
from tf_dist.cluster.apiserver.storage.garbage_collector import DeleteOptions, GarbageCollector
from tf_dist.cluster.apiserver.storage.list_watch import WatchStream, initial_events, list_objects
from tf_dist.cluster.apiserver.storage.object_admission import (
    ServerContext,
    Validator,
    admit_create,
    admit_update,
    check_quota,
    decode_body,
    error_subject,
    update_quota_status,
)
from tf_dist.cluster.apiserver.storage.patch import apply_patch
from tf_dist.cluster.apiserver.storage.selectors import object_predicate
from tf_dist.cluster.apiserver.storage.store import Clock, Journal, Key, Store, deep_copy_json, owner_references
from tf_dist.core.model.names import SYSTEM_NAMESPACE
from tf_dist.core.model.timestamps import format_time
from tf_dist.errors import AlreadyExists, Conflict, NotFound, Problem

LogSource = Callable[[str, str, LogOptions], Stream[bytes]]
"""``Cluster.logs``, served by the kubelet when it runs."""
EndpointResolver = Callable[[Object, Sequence[str]], Mapping[str, str]]
"""``Cluster.addresses``, where DNS does not work."""
_CRDS_KEY: Final = f"{CRDS.plural}.{CRDS.group}"
_EVENT_SECONDS: Final = 3600  # for which events are kept
_NAME_ATTEMPTS: Final = 8  # attempts to generate a name that is not taken
# No vowels and no similar characters, so that a random suffix spells no word. The prefix is cut so that the name fits
# in a label.
_SUFFIX: Final = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH: Final = 5
_GENERATED_MAX: Final = 63


class MemoryCluster:
    """A cluster inside this process. Thread-safe; returned dicts must not be changed.

    ``journal`` makes it durable. ``validators``, by (group, kind), check new and changed specs and may fill in
    defaults. ``history``: the number of changes of a kind that a watch can start from. ``kinds`` are always served.
    ``any_priority_class``: pods may name a missing PriorityClass, because files may be written for another cluster.
    """

    def __init__(
        self,
        *,
        clock: Clock = time.time,
        uids: Callable[[], str] = lambda: str(uuid.uuid4()),
        validators: Mapping[tuple[str, str], Validator] | None = None,
        journal: Journal | None = None,
        history: int = 10_000,
        bookmark_every: float = 30.0,
        kinds: Iterable[Kind] = BUILTIN_KINDS,
        any_priority_class: bool = False,
    ) -> None:
        self.log_source: LogSource | None = None
        self.endpoint_resolver: EndpointResolver | None = None
        self.clock = clock
        self._bookmark_every = bookmark_every
        self._store = Store(journal, history)
        self.kinds = ResourceRegistry(kinds)
        self._context = ServerContext(
            self._store, self.kinds, clock, uids, random.Random(), validators or {}, any_priority_class
        )
        self._reaper = GarbageCollector(self._context)
        with self._store.lock:
            for _, _, crd in self._store.scan(_CRDS_KEY, None):
                self.kinds.define(crd)
            self._reaper.resync_all()
            # The last namespace exists in a cluster in which tf-dist is installed.
            for name in ("default", "kube-system", SYSTEM_NAMESPACE):
                if self._store.get(Key("namespaces", "", name)) is None:
                    self.create(api.NAMESPACES, None, {"metadata": {"name": name}})

    def close(self) -> None:
        """End every watch, and close the file, if any."""
        with self._store.lock:
            self._reaper.close()
            self._store.close()

    def __enter__(self) -> MemoryCluster:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Reading

    def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        limit: int = 0,
        continue_: str = "",
    ) -> ObjectList:
        """All objects of a kind in order of namespace and name, or a page of them as of the first page."""
        with self._store.lock:
            asked = self.kinds.scope(resource)
            match = object_predicate(labels, fields)
            found = list_objects(self._store, asked.kind.key, namespace, match, limit, continue_)
        return found._replace(items=[asked.view(obj) for obj in found.items])

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        """One object; NotFound."""
        with self._store.lock:
            asked = self.kinds.scope(resource)
            return asked.view(self._existing(asked.key(namespace, name)))

    def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        since: str = "",
        timeout: float = 290,
        initial_end: bool = False,
    ) -> Stream[WatchEvent]:
        """Changes after a version. "" and "0" start with the existing objects (``initial_end``: followed by a
        bookmark).
        """
        match = object_predicate(labels, fields)
        with self._store.lock:
            asked = self.kinds.scope(resource)
            kind = asked.kind.key
            backlog = initial_events(self._store, kind, namespace, match, asked.view, since)
            if initial_end:
                backlog.append(WatchEvent("BOOKMARK", asked.bookmark(str(self._store.version), initial_end=True)))
            return WatchStream(
                self._store,
                kind,
                self._store.listen(kind, namespace),
                backlog=backlog,
                match=match,
                view=asked.view,
                bookmark=asked.bookmark,
                bookmark_every=self._bookmark_every,
                timeout=timeout,
            )

    def logs(self, namespace: str, pod: str, options: LogOptions = ALL_LINES) -> Stream[bytes]:
        """The lines of a container's log (the named container, or the only one), from the kubelet that runs it."""
        spec = self.get(api.PODS, namespace, pod)["spec"]
        names = [item["name"] for field in ("containers", "initContainers") for item in spec.get(field) or ()]
        container = options.container or names[0]
        if container not in names:
            raise BadRequest(f"container {container} is not valid for pod {pod}")
        if not options.container and len(spec["containers"]) > 1:
            choices = " ".join(item["name"] for item in spec["containers"])
            raise BadRequest(f"a container name must be specified for pod {pod}, choose one of: [{choices}]")
        if self.log_source is None:
            raise BadRequest(f'container "{container}" in pod "{pod}" is waiting to start: no node agent runs here')
        return self.log_source(namespace, pod, replace(options, container=container))

    def addresses(self, owner: Object, endpoints: Sequence[str]) -> Mapping[str, str]:
        """The real addresses of endpoints; {} without an endpoint resolver."""
        return self.endpoint_resolver(owner, endpoints) if self.endpoint_resolver else {}

    def _existing(self, key: Key) -> Object:
        if (obj := self._store.get(key)) is None:
            raise NotFound(f'{key.kind} "{key.name}" not found')
        return obj

    # Writing

    def create(self, resource: Resource, namespace: str | None, body: Object, *, dry_run: bool = False) -> Object:
        """The created object; AlreadyExists, Rejected, Forbidden, NotFound (no such namespace)."""
        with self._store.lock:
            asked = self.kinds.scope(resource)
            kind = asked.kind
            obj = decode_body(kind, resource.api_version, body)
            space = self._namespace_of(kind, namespace, obj)
            self._generate_name(kind, space, obj["metadata"])
            if obj["metadata"].get("resourceVersion"):
                raise BadRequest("resourceVersion should not be set on objects to be created")
            obj = admit_create(self._context, kind, obj)
            key = Key(kind.key, space, obj["metadata"]["name"])
            if self._store.get(key) is not None:
                raise AlreadyExists(f'{kind.key} "{key.name}" already exists')
            obj["apiVersion"] = kind.resource.api_version
            check_quota(self._context, kind, obj)
            if not dry_run:
                obj = self._put(key, obj)
                if key.kind == "events":
                    self._forget_old_events(space)
                if owner_references(obj):
                    self._reaper.consider(key)
        return asked.view(obj)

    def _namespace_of(self, kind: Kind, namespace: str | None, obj: Object) -> str:
        """The namespace of a new object, which must exist and not be terminating."""
        metadata = obj["metadata"]
        if not kind.resource.namespaced:
            metadata.pop("namespace", None)
            return ""
        space = namespace or metadata.get("namespace")
        if not space or metadata.setdefault("namespace", space) != space:
            raise BadRequest(
                f"the namespace of the provided object ({metadata.get('namespace', '')}) does not match the namespace "
                f"sent on the request ({namespace or ''})"
            )
        found = self._store.get(Key("namespaces", "", space))
        if found is None:
            raise NotFound(f'namespaces "{space}" not found', hint="create the namespace first")
        if found["metadata"].get("deletionTimestamp"):
            raise AdmissionDenied(
                f'{kind.key} "{metadata.get("name", "")}" is forbidden: unable to create new content in namespace '
                f"{space} because it is being terminated"
            )
        return str(space)

    def _generate_name(self, kind: Kind, namespace: str, metadata: Object) -> None:
        for field in ("name", "generateName"):
            if not isinstance(metadata.get(field) or "", str):
                raise BadRequest(f"metadata.{field} must be a string")
        if metadata.get("name") or not metadata.get("generateName"):
            return
        for _ in range(_NAME_ATTEMPTS):
            suffix = "".join(self._context.dice.choices(_SUFFIX, k=_SUFFIX_LENGTH))
            metadata["name"] = metadata["generateName"][: _GENERATED_MAX - _SUFFIX_LENGTH] + suffix
            if self._store.get(Key(kind.key, namespace, metadata["name"])) is None:
                return

    def _put(self, key: Key, obj: Object) -> Object:
        """Store the object, and process all consequences."""
        stored = self._store.put(key, obj)
        update_quota_status(self._context, key)
        if key.kind == _CRDS_KEY:
            self.kinds.define(stored)
        return self._store.get(key) or stored

    def _forget_old_events(self, namespace: str) -> None:
        """Delete Events an hour after their last occurrence, as Kubernetes does. Runs when an Event is added."""
        limit = format_time(self.clock() - _EVENT_SECONDS)
        old: list[str] = []
        for name, event in self._store.by_age("events", namespace).items():
            if event["metadata"]["creationTimestamp"] >= limit:
                break
            if (event.get("lastTimestamp") or "") < limit:
                old.append(name)
        for name in old:
            self._reaper.gone(Key("events", namespace, name))

    def replace(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        body: Object,
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        """The object after it was replaced; NotFound, Conflict, Rejected."""
        with self._store.lock:
            asked = self.kinds.scope(resource, subresource)
            kind, key = asked.kind, asked.key(namespace, name)
            obj = decode_body(kind, resource.api_version, body)
            metadata = obj["metadata"]
            if metadata.setdefault("name", name) != name:
                raise BadRequest(
                    f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})"
                )
            if key.namespace and metadata.setdefault("namespace", key.namespace) != key.namespace:
                raise BadRequest(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
            old = self._existing(key)
            if not metadata.get("resourceVersion") and not kind.unconditional:
                problem = Problem("metadata.resourceVersion", "Invalid value: 0: must be specified for an update")
                raise Invalid(error_subject(kind, obj), [problem])
            return asked.view(self._update(kind, key, old, obj, subresource=subresource, dry_run=dry_run))

    def patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        body: Any,
        *,
        kind: PatchType = PatchType.MERGE,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        """The patched object; NotFound, Conflict, Rejected."""
        with self._store.lock:
            asked = self.kinds.scope(resource, subresource)
            key = asked.key(namespace, name)
            if asked.kind.custom and kind is PatchType.STRATEGIC:
                taken = f"{PatchType.MERGE}, {PatchType.JSON}"
                raise UnsupportedMediaType(f"the body of the request was in an unknown format: {key.kind} take {taken}")
            try:
                change = deep_copy_json(body)
            except (TypeError, RecursionError) as error:
                raise BadRequest(f"the patch is not JSON: {error}") from error
            old = self._existing(key)
            before = asked.view(old)
            new = apply_patch(before, change, kind)
            metadata = new.get("metadata")
            if not isinstance(metadata, dict) or new.get("apiVersion") != before["apiVersion"]:
                raise BadRequest("a patch may not change the apiVersion or remove the metadata")
            if metadata.get("name") != name:
                raise BadRequest(
                    f"the name of the object ({metadata.get('name')}) does not match the name on the URL ({name})"
                )
            if (uid := metadata.get("uid")) != old["metadata"]["uid"]:
                problem = Problem("metadata.uid", f'Invalid value: "{uid}": field is immutable')
                raise Invalid(error_subject(asked.kind, old), [problem])
            new = decode_body(asked.kind, before["apiVersion"], new, before)
            return asked.view(self._update(asked.kind, key, old, new, subresource=subresource, dry_run=dry_run))

    def _update(self, kind: Kind, key: Key, old: Object, new: Object, *, subresource: str, dry_run: bool) -> Object:
        # Optimistic concurrency: a writer that read an older version, or another object of the same name, fails.
        failed = f'Operation cannot be fulfilled on {key.kind} "{key.name}"'
        before, metadata = old["metadata"], new["metadata"]
        if metadata.get("uid") not in (None, "", before["uid"]):
            raise Conflict(
                f"{failed}: the UID in the precondition ({metadata['uid']}) does not match the UID in record "
                f"({before['uid']})"
            )
        if metadata.get("resourceVersion") not in (None, "", before["resourceVersion"]):
            raise Conflict(
                f"{failed}: the object has been modified; please apply your changes to the latest version and try again"
            )
        new = admit_update(self._context, kind, old, new, subresource)
        new["apiVersion"] = kind.resource.api_version
        if new == old or dry_run:
            return new
        stored = self._put(key, new)
        if self._reaper.done(key, stored) or owner_references(stored) != owner_references(old):
            self._reaper.consider(key)
        return stored

    def bind(self, namespace: str, pod: str, node: str) -> Object:
        """Assign a node to a pod; Conflict when the pod has a node."""
        with self._store.lock:
            key = Key("pods", namespace, pod)
            found = self._existing(key)
            if found["metadata"].get("deletionTimestamp"):
                raise Conflict(f"pod {pod} is being deleted, cannot be assigned to a host")
            if taken := found["spec"].get("nodeName"):
                raise Conflict(f'pod {pod} is already assigned to node "{taken}"')
            if found["spec"].get("schedulingGates"):
                raise Conflict(f"pod {pod} has non-empty .spec.schedulingGates")
            status = found.get("status") or {}
            others = [item for item in status.get("conditions") or () if item.get("type") != "PodScheduled"]
            scheduled = {**self._condition("PodScheduled"), "lastProbeTime": None}
            bound = {
                **found,
                "spec": {**found["spec"], "nodeName": node},
                "status": {**status, "conditions": [*others, scheduled]},
            }
            return self._store.put(key, bound)

    def _condition(self, type_: str) -> Object:
        return {"type": type_, "status": "True", "lastTransitionTime": self._context.now()}

    def evict(self, namespace: str, pod: str, options: DeleteOptions | None = None, *, dry_run: bool = False) -> None:
        """Evict a pod as the eviction subresource does: set its condition, then delete it.

        No disruption budget is enforced. NotFound; Conflict if the preconditions of ``options`` do not match.
        """
        options = options or DeleteOptions()
        with self._store.lock:
            before = self.get(api.PODS, namespace, pod)
            self._reaper.check(Key("pods", namespace, pod), before, options)
            if dry_run:
                return
            why = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting", "lastProbeTime": None}
            change = {"status": {"conditions": [{**self._condition("DisruptionTarget"), **why}]}}
            self.patch(api.PODS, namespace, pod, change, kind=PatchType.STRATEGIC, subresource="status")
            self.delete_with(api.PODS, namespace, pod, replace(options, version=""))

    # Deleting

    def delete(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        uid: str = "",
        version: str = "",
        grace_period: int | None = None,
        propagation: str = "Background",
    ) -> None:
        """Request deletion; NotFound, Conflict if ``uid`` or the resource ``version`` is not the object's."""
        options = DeleteOptions(uid=uid, version=version, grace_period=grace_period, propagation=propagation)
        self.delete_with(resource, namespace, name, options)

    def delete_with(
        self, resource: Resource, namespace: str | None, name: str, options: DeleteOptions, *, dry_run: bool = False
    ) -> Object | None:
        """Delete with all options of the API. Returns the marked object, or None when it is removed."""
        with self._store.lock:
            asked = self.kinds.scope(resource)
            key = asked.key(namespace, name)
            obj = self._existing(key)
            if dry_run:
                self._reaper.check(key, obj, options)
                return asked.view(obj)
            left = self._reaper.delete(key, obj, options)
        return asked.view(left) if left else None

    def compact(self) -> None:
        """Forget the history of changes: watches from older versions are Gone."""
        with self._store.lock:
            self._store.compact()
