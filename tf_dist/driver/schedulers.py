"""The objects of other gang schedulers: which the cluster serves is found out when a job asks for one, and followed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

from tf_dist.cluster.api import Cluster, Object, Resource
from tf_dist.cluster.reflector import Reflector
from tf_dist.cluster.runtime import MACHINE, Runtime
from tf_dist.core import names
from tf_dist.core.schedulers.model import Scheduler
from tf_dist.core.schedulers.served import Api, Served
from tf_dist.driver import slim
from tf_dist.driver.recorder import Recorder
from tf_dist.driver.refs import JobRef
from tf_dist.errors import ClusterError, Forbidden, NotFound

_LOG = logging.getLogger(__name__)
# Seconds between two looks for a scheduler that was not there: many jobs may ask for it.
_AGAIN: Final = 15.0


@dataclass(frozen=True, slots=True)
class _Found:
    """One scheduler: its reflectors by the key of their kind, or why it cannot be used, and when that was found."""

    reflectors: Mapping[str, Reflector] = field(default_factory=dict)
    missing: str = ""
    at: float = 0.0


class Schedulers:
    """What a driver sees of the gang schedulers that its jobs ask for. Thread-safe.

    ``namespace``: see their objects in this one only (None: in all). ``rung`` is called with a job that something has
    changed for. ``monotonic``: seconds that only go forward.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str | None,
        *,
        rung: Callable[[JobRef], None],
        recorder: Recorder,
        monotonic: Callable[[], float] = time.monotonic,
        runtime: Runtime = MACHINE,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._rung = rung
        self._recorder = recorder
        self._monotonic = monotonic
        self._runtime = runtime
        self._lock = runtime.lock()
        self._looking: dict[str, AbstractContextManager[Any]] = {}
        self._found: dict[str, _Found] = {}
        self._retired: list[Reflector] = []
        self._followed = False
        self._ended = False

    # Their life

    def follow(self) -> None:
        """From now on what is found is followed in threads, one a kind, until ``end``."""
        with self._lock:
            self._followed = True
            for reflector in self.reflectors():
                reflector.start()

    def reflectors(self) -> list[Reflector]:
        """Those of every kind that is in use."""
        return [reflector for found in list(self._found.values()) for reflector in found.reflectors.values()]

    def end(self) -> None:
        """Begin no thread any more; those of ``reflectors`` are for the caller to stop."""
        with self._lock:
            self._ended = True
        for reflector in self._retired:
            reflector.stop()

    # What they hold

    def served(self, scheduler: Scheduler, priorities: Mapping[str, int]) -> Served | None:
        """What there is of a scheduler now; None while that cannot be told. ``priorities``: of PriorityClasses."""
        found = self._look(scheduler)
        if found is None or not all(reflector.synced() for reflector in found.reflectors.values()):
            return None
        if found.missing:
            return Served(missing=found.missing)
        resources = {key: reflector.resource for key, reflector in found.reflectors.items()}
        return Served(
            versions={key: resource.version for key, resource in resources.items()},
            shared={
                (key, stored["metadata"]["name"]): stored
                for key, resource in resources.items()
                if not resource.namespaced
                for stored in found.reflectors[key].items()
            },
            priorities=priorities,
        )

    def objects(self, namespace: str, uid: str) -> dict[tuple[str, str], Object]:
        """What a job has at the schedulers in use, by kind (with its group) and name."""
        return {
            (key, stored["metadata"]["name"]): stored
            for found in list(self._found.values())
            for key, reflector in found.reflectors.items()
            if reflector.resource.namespaced
            for stored in reflector.cache.group(names.owned_key(namespace, uid))
        }

    def reflector(self, kind: Resource) -> Reflector:
        """The one of a kind in use; KeyError."""
        return {one.resource: one for one in self.reflectors()}[kind]

    def resource(self, key: str) -> Resource:
        """The kind of that name (with its group), in the version that is used here; KeyError if it is not."""
        return {key: one for found in list(self._found.values()) for key, one in found.reflectors.items()}[key].resource

    # How they are found

    def _look(self, scheduler: Scheduler) -> _Found | None:
        """One thread at a time looks for a scheduler, and the others wait for what it finds: they ask for the same."""
        with self._lock:
            looking = self._looking.setdefault(scheduler.name, self._runtime.lock())
        with looking:
            with self._lock:
                self._retire_absent(scheduler.name)
                found = self._found.get(scheduler.name)
                again = found is not None and found.missing and self._monotonic() - found.at >= _AGAIN
                if self._ended or not (found is None or again):
                    return found
            try:
                detected = self._detected(scheduler)
            except ClusterError as error:
                _LOG.warning("cannot see whether there is gang scheduler %s: %s", scheduler.name, error)
                return found
            self._keep(scheduler.name, detected)
            return detected

    def _keep(self, name: str, found: _Found) -> None:
        with self._lock:
            if self._ended:
                return
            self._found[name] = found
            for reflector in found.reflectors.values() if self._followed else ():
                reflector.start()

    def _retire_absent(self, name: str) -> None:
        """Removed, or served in another version by now: what is not cached any more may be there all the same."""
        found = self._found.get(name)
        if found is not None and any(reflector.absent for reflector in found.reflectors.values()):
            del self._found[name]
            for reflector in found.reflectors.values():
                reflector.end()
            self._retired = [one for one in (*self._retired, *found.reflectors.values()) if one.alive()]

    def _detected(self, scheduler: Scheduler) -> _Found:
        """The first of the alternatives that is served whole; ClusterError when that cannot be found out."""
        missing = ""
        for alternative in scheduler.apis:
            try:
                resources = {api.key: self._version(api) for api in alternative}
            except (NotFound, Forbidden) as error:
                missing = missing or f"gang scheduler {scheduler.name} cannot be used: {error}"
                continue
            kinds = {key: self._reflector(resource) for key, resource in resources.items()}
            for reflector in kinds.values():
                reflector.refresh()
            return _Found(kinds)
        return _Found(missing=missing, at=self._monotonic())

    def _version(self, api: Api) -> Resource:
        """The best version that is served; NotFound, Forbidden."""
        for version in api.versions:
            resource = Resource(api.group, version, api.kind, api.plural, api.namespaced)
            try:
                self._cluster.list(resource, self._namespace if api.namespaced else None, limit=1)
            except NotFound:
                continue
            return resource
        raise NotFound(f"the cluster does not serve {api.plural} of {api.group} ({', '.join(api.versions)})")

    def _reflector(self, resource: Resource) -> Reflector:
        own = resource.namespaced
        return Reflector(
            self._cluster,
            resource,
            changed=self._changed if own else self._shared_changed,
            namespace=self._namespace if own else None,
            labels=names.JOB_UID if own else "",
            keep=slim.rule,
            index=names.owner_key if own else lambda _: "",
            restarted=self._recorder.watch_restarted,
            runtime=self._runtime,
        )

    def _changed(self, old: Object | None, new: Object | None) -> None:
        there = new or old
        ref = JobRef.of_owner(there) if there is not None else None
        if ref is not None:
            self._rung(ref)

    def _shared_changed(self, old: Object | None, new: Object | None) -> None:
        """Any job may have waited for it; there are few such objects, and they hardly ever change."""
        for reflector in self.reflectors():
            for stored in reflector.items() if reflector.resource.namespaced else ():
                self._changed(None, stored)
