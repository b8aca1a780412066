"""MemoryCluster: the Cluster protocol over a store in this process, with Kubernetes' semantics."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tf_dist.cluster import api
from tf_dist.cluster.api import ALL_LINES, LogOptions, Object, ObjectList, PatchType, Resource, Stream, WatchEvent
from tf_dist.cluster.api_errors import BadRequest
from tf_dist.cluster.apiserver.storage import list_watch
from tf_dist.cluster.apiserver.storage.api_resources import BUILTIN_KINDS, Kind, ResourceRegistry, request_scope
from tf_dist.cluster.apiserver.storage.garbage_collector import DeleteOptions, GarbageCollector
from tf_dist.cluster.apiserver.storage.list_watch import WatchStream
from tf_dist.cluster.apiserver.storage.object_admission import ServerContext, Validator
from tf_dist.cluster.apiserver.storage.store import Clock, Journal, Key, Store
from tf_dist.cluster.apiserver.storage.writes import ObjectWriter, object_not_found
from tf_dist.core.api.names import SYSTEM_NAMESPACE
from tf_dist.core.api.timestamps import format_time
from tf_dist.errors import NotFound

LogSource = Callable[[str, str, LogOptions], Stream[bytes]]
"""``Cluster.logs``, of the kubelet once it runs."""
EndpointResolver = Callable[[Object, Sequence[str]], Mapping[str, str]]
"""``Cluster.addresses``, where DNS does not work."""


def log_container(pod: Object, wanted: str) -> str:
    """The container of a log request: the named one, or the only one; BadRequest."""
    spec = pod["spec"]
    names = [item["name"] for field in ("containers", "initContainers") for item in spec.get(field) or ()]
    name = pod["metadata"]["name"]
    if wanted:
        if wanted not in names:
            raise BadRequest(f"container {wanted} is not valid for pod {name}")
        return wanted
    main: str = spec["containers"][0]["name"]
    if len(spec["containers"]) > 1:
        choices = " ".join(item["name"] for item in spec["containers"])
        raise BadRequest(f"a container name must be specified for pod {name}, choose one of: [{choices}]")
    return main


class MemoryCluster:
    """A cluster inside this process. Thread-safe; a dict that it returned must not be changed.

    ``journal`` makes it durable; ``validators`` judge new and changed specs by (group, kind) and may fill in
    defaults; ``history`` is how many changes per kind a watch can look back on; ``kinds``: what is served from the
    start, and for good; ``any_priority_class``: pods may name a PriorityClass that is not there, as files do that were
    written for another cluster.
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
        self._writer = ObjectWriter(self._context, self._reaper)
        self._recover()

    def _recover(self) -> None:
        with self._store.lock:
            self._writer.register_stored_crds()
            self._reaper.resync_all()
            # The last one: a cluster in which tf-dist is installed.
            for name in ("default", "kube-system", SYSTEM_NAMESPACE):
                if self._store.get(Key("namespaces", "", name)) is None:
                    self.create(api.NAMESPACES, None, {"metadata": {"name": name}})

    def close(self) -> None:
        """End every watch and close the file, if there is one."""
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
            asked = request_scope(self.kinds, resource)
            page = list_watch.ListOptions(
                asked.kind.key, namespace, list_watch.object_predicate(labels, fields), limit, continue_
            )
            found = list_watch.list_objects(self._store, page)
        return found._replace(items=asked.views(found.items))

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        """One object; NotFound."""
        with self._store.lock:
            asked = request_scope(self.kinds, resource)
            obj = self._store.get(asked.key(namespace, name))
        if obj is None:
            raise object_not_found(asked.kind, name)
        return asked.view(obj)

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
        """Changes after a version; "" and "0" start with what is there (``initial_end``: then a bookmark says so)."""
        match = list_watch.object_predicate(labels, fields)
        with self._store.lock:
            asked = request_scope(self.kinds, resource)
            kind = asked.kind.key
            backlog = list_watch.initial_events(self._store, kind, namespace, match, asked.view, since)
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
        """The lines of a container's log, from the kubelet that runs it."""
        found = self.get(api.PODS, namespace, pod)
        container = log_container(found, options.container)
        if self.log_source is None:
            raise BadRequest(f'container "{container}" in pod "{pod}" is waiting to start: no node agent runs here')
        return self.log_source(namespace, pod, replace(options, container=container))

    def addresses(self, owner: Object, endpoints: Sequence[str]) -> Mapping[str, str]:
        """Where endpoints are really reached; {} without an endpoint resolver."""
        return self.endpoint_resolver(owner, endpoints) if self.endpoint_resolver else {}

    # Writing

    def create(self, resource: Resource, namespace: str | None, body: Object, *, dry_run: bool = False) -> Object:
        """The created object; AlreadyExists, Rejected, Forbidden, NotFound (no such namespace)."""
        with self._store.lock:
            asked = request_scope(self.kinds, resource)
            obj = self._writer.create(asked.kind, resource, namespace, body, dry_run=dry_run)
        return asked.view(obj)

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
            asked = request_scope(self.kinds, resource, subresource)
            key = asked.key(namespace, name)
            obj = self._writer.replace(asked.kind, resource, key, body, subresource=subresource, dry_run=dry_run)
        return asked.view(obj)

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
            asked = request_scope(self.kinds, resource, subresource)
            key = asked.key(namespace, name)
            obj = self._writer.patch(
                asked.kind, key, body, how=kind, view=asked.view, subresource=subresource, dry_run=dry_run
            )
        return asked.view(obj)

    def delete(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        uid: str = "",
        grace_period: int | None = None,
        propagation: str = "Background",
    ) -> None:
        """Ask for deletion; NotFound, Conflict if ``uid`` is not the object's."""
        options = DeleteOptions(uid=uid, grace_period=grace_period, propagation=propagation)
        self.delete_with(resource, namespace, name, options)

    def delete_with(
        self, resource: Resource, namespace: str | None, name: str, options: DeleteOptions, *, dry_run: bool = False
    ) -> Object | None:
        """Delete with every option the API has: what is left of the object, or None when it is gone."""
        with self._store.lock:
            asked = request_scope(self.kinds, resource)
            key = asked.key(namespace, name)
            obj = self._store.get(key)
            if obj is None:
                raise object_not_found(asked.kind, name)
            if dry_run:
                self._reaper.check(key, obj, options)
                return asked.view(obj)
            left = self._reaper.delete(key, obj, options)
        return asked.view(left) if left else None

    def delete_collection(
        self,
        resource: Resource,
        namespace: str | None,
        options: DeleteOptions | None = None,
        *,
        labels: str = "",
        fields: str = "",
        dry_run: bool = False,
    ) -> None:
        """Delete everything in a namespace (or in all of them) that the selectors match."""
        with self._store.lock:
            for obj in self.list(resource, namespace, labels=labels, fields=fields).items:
                metadata = obj["metadata"]
                with suppress(NotFound):  # the one before may have owned it
                    self.delete_with(
                        resource,
                        metadata.get("namespace"),
                        metadata["name"],
                        options or DeleteOptions(),
                        dry_run=dry_run,
                    )

    def bind(self, namespace: str, pod: str, node: str) -> Object:
        """Give a pod its node, as the binding subresource does; Conflict when it has one."""
        with self._store.lock:
            return self._writer.bind(Key("pods", namespace, pod), node)

    def evict(self, namespace: str, pod: str, options: DeleteOptions | None = None, *, dry_run: bool = False) -> None:
        """Evict a pod as the eviction subresource does: its condition says so, then it is deleted.

        Disruption budgets are stored, not enforced. NotFound; Conflict if ``options`` fences another pod.
        """
        options = options or DeleteOptions()
        with self._store.lock:
            before = self.get(api.PODS, namespace, pod)
            self._reaper.check(Key("pods", namespace, pod), before, options)
            if dry_run:
                return
            patch = {"status": {"conditions": [_disruption_target(format_time(self.clock()))]}}
            self.patch(api.PODS, namespace, pod, patch, kind=PatchType.STRATEGIC, subresource="status")
            self.delete_with(api.PODS, namespace, pod, replace(options, version=""))

    def compact(self) -> None:
        """Forget the history of changes: watches from older versions are Gone."""
        with self._store.lock:
            self._store.compact()


def _disruption_target(now: str) -> Object:
    return {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastProbeTime": None,
        "lastTransitionTime": now,
    }
