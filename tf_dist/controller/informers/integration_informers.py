"""Informers of other gang schedulers' objects. Their kinds are discovered when a job first names the scheduler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tf_dist.cluster.api import Object, Resource
from tf_dist.cluster.client.informer import Informer
from tf_dist.controller.informers import transforms
from tf_dist.controller.observability.metrics_interface import Metric
from tf_dist.controller.settings import ControllerContext, JobRef
from tf_dist.core.model import names
from tf_dist.core.model.context import ApiResource, Integration, ServedApis
from tf_dist.errors import ClusterError, Forbidden, NotFound

_LOG = logging.getLogger(__name__)
# Seconds between two checks for a missing scheduler: many jobs may name it.
_DISCOVER_EVERY: Final = 15.0


@dataclass(frozen=True, slots=True)
class _ServedIntegration:
    """One scheduler: its informers by the key of their kind, or why it cannot be used, with the time of the check."""

    informers: Mapping[str, Informer] = field(default_factory=dict)
    missing: str = ""
    at: float = 0.0


class IntegrationInformers:
    """Informers of the gang schedulers that jobs name. Thread-safe.

    If ``context`` names a namespace, objects are watched only there. ``on_change`` is called with a job
    whose objects have changed.
    """

    def __init__(self, context: ControllerContext, *, on_change: Callable[[JobRef], None]) -> None:
        self._context = context
        self._namespace = context.settings.namespace
        self._on_change = on_change
        self._lock = context.runtime.lock()
        self._looking: dict[str, AbstractContextManager[Any]] = {}
        self._found: dict[str, _ServedIntegration] = {}
        self._retired: list[Informer] = []
        self._followed = False
        self._ended = False

    # Lifecycle

    def follow(self) -> None:
        """Watch discovered kinds in threads, one for each kind, until ``end``."""
        with self._lock:
            self._followed = True
            for informer in self.informers():
                informer.start()

    def informers(self) -> list[Informer]:
        """The informers of every kind in use."""
        return [informer for found in list(self._found.values()) for informer in found.informers.values()]

    def end(self) -> None:
        """Start no further threads. The caller stops the threads of ``informers``."""
        with self._lock:
            self._ended = True
        for informer in self._retired:
            informer.stop()

    # Caches

    def served(self, scheduler: Integration, priorities: Mapping[str, int]) -> ServedApis | None:
        """The current APIs of a scheduler; None until they are known. ``priorities``: the values of PriorityClasses."""
        found = self._look(scheduler)
        if found is None or not all(informer.synced() for informer in found.informers.values()):
            return None
        if found.missing:
            return ServedApis(missing=found.missing)
        resources = {key: informer.resource for key, informer in found.informers.items()}
        return ServedApis(
            versions={key: resource.version for key, resource in resources.items()},
            shared={
                (key, stored["metadata"]["name"]): stored
                for key, resource in resources.items()
                if not resource.namespaced
                for stored in found.informers[key].items()
            },
            priorities=priorities,
        )

    def objects(self, namespace: str, uid: str) -> dict[tuple[str, str], Object]:
        """The objects of a job for the schedulers in use, by kind (with its group) and name."""
        return {
            (key, stored["metadata"]["name"]): stored
            for found in list(self._found.values())
            for key, informer in found.informers.items()
            if informer.resource.namespaced
            for stored in informer.cache.group(names.owned_by_key(namespace, uid))
        }

    def informer(self, kind: Resource) -> Informer:
        """The informer of a kind in use. Raises KeyError for other kinds."""
        return {one.resource: one for one in self.informers()}[kind]

    def resource(self, key: str) -> Resource:
        """The kind of that name (with its group) in the used version. Raises KeyError if it is not used."""
        return {key: one for found in list(self._found.values()) for key, one in found.informers.items()}[key].resource

    # Discovery

    def _look(self, scheduler: Integration) -> _ServedIntegration | None:
        """Discover a scheduler. Only one thread at a time sends requests. Other threads wait for its result."""
        with self._lock:
            looking = self._looking.setdefault(scheduler.name, self._context.runtime.lock())
        with looking:
            with self._lock:
                self._retire_absent(scheduler.name)
                found = self._found.get(scheduler.name)
                again = found is not None and found.missing and self._context.monotonic() - found.at >= _DISCOVER_EVERY
                if self._ended or not (found is None or again):
                    return found
            try:
                detected = self._detected(scheduler)
            except ClusterError as error:
                _LOG.warning("cannot discover gang scheduler name=%s: %s", scheduler.name, error)
                return found
            with self._lock:
                if not self._ended:
                    self._found[scheduler.name] = detected
                    for informer in detected.informers.values() if self._followed else ():
                        informer.start()
            return detected

    def _retire_absent(self, name: str) -> None:
        """Discard a scheduler if its API was removed or has another version. Its objects may still exist."""
        found = self._found.get(name)
        if found is not None and any(informer.absent for informer in found.informers.values()):
            del self._found[name]
            for informer in found.informers.values():
                informer.end()
            self._retired = [one for one in (*self._retired, *found.informers.values()) if one.alive()]

    def _detected(self, scheduler: Integration) -> _ServedIntegration:
        """The first of the alternatives that is completely served. Raises ClusterError if discovery fails."""
        missing = ""
        for alternative in scheduler.apis:
            try:
                resources = {api.key: self._version(api) for api in alternative}
            except (NotFound, Forbidden) as error:
                missing = missing or f"gang scheduler {scheduler.name} cannot be used: {error}"
                continue
            kinds = {key: self._informer(resource) for key, resource in resources.items()}
            for informer in kinds.values():
                informer.refresh()
            return _ServedIntegration(kinds)
        return _ServedIntegration(missing=missing, at=self._context.monotonic())

    def _version(self, api: ApiResource) -> Resource:
        """The best served version. Raises NotFound or Forbidden if no version can be listed."""
        for version in api.versions:
            resource = Resource(api.group, version, api.kind, api.plural, api.namespaced)
            try:
                self._context.cluster.list(resource, self._namespace if api.namespaced else None, limit=1)
            except NotFound:
                continue
            return resource
        raise NotFound(f"the cluster does not serve {api.plural} of {api.group} ({', '.join(api.versions)})")

    def _informer(self, resource: Resource) -> Informer:
        own = resource.namespaced
        return Informer(
            self._context.cluster,
            resource,
            changed=self._changed if own else self._shared_changed,
            namespace=self._namespace if own else None,
            labels=names.JOB_UID if own else "",
            keep=transforms.whole,
            index=names.owner_key if own else lambda _: "",
            restarted=partial(self._context.recorder.record, Metric.WATCH_RESTARTS),
            runtime=self._context.runtime,
        )

    def _changed(self, old: Object | None, new: Object | None) -> None:
        refs = (JobRef.of_owner(one) for one in (new, old) if one is not None)
        for ref in dict.fromkeys(refs):
            if ref is not None:
                self._on_change(ref)

    def _shared_changed(self, old: Object | None, new: Object | None) -> None:
        """Wake all jobs with objects, because any may wait for it. Shared objects are few, and rarely change."""
        for informer in self.informers():
            for stored in informer.items() if informer.resource.namespaced else ():
                self._changed(None, stored)
