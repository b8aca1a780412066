"""Create, update, patch and bind: from a request's body to the stored object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tf_dist.cluster.api import Object, PatchType, Resource
from tf_dist.cluster.api_errors import AdmissionDenied, BadRequest, Invalid, UnsupportedMediaType
from tf_dist.cluster.apiserver.storage import object_admission, object_validation
from tf_dist.cluster.apiserver.storage.api_resources import CRDS, Kind
from tf_dist.cluster.apiserver.storage.garbage_collector import GarbageCollector
from tf_dist.cluster.apiserver.storage.object_admission import (
    ServerContext,
    admit_create,
    admit_update,
    decode_body,
    error_subject,
)
from tf_dist.cluster.apiserver.storage.patch import apply_patch
from tf_dist.cluster.apiserver.storage.store import Key, deep_copy_json, owner_references
from tf_dist.core.api.timestamps import format_time
from tf_dist.errors import AlreadyExists, Conflict, NotFound, Problem

_CRDS_KEY = f"{CRDS.plural}.{CRDS.group}"
# How often a generated name is drawn anew when it is taken.
_NAME_ATTEMPTS = 8
_EVENT_SECONDS = 3600


def object_not_found(kind: Kind, name: str) -> NotFound:
    """The NotFound of an object."""
    return NotFound(f'{kind.key} "{name}" not found')


class ObjectWriter:
    """Every method expects the store's lock to be held, and returns the object in its storage version."""

    def __init__(self, context: ServerContext, reaper: GarbageCollector) -> None:
        self._context = context
        self._store = context.store
        self._reaper = reaper

    def create(self, kind: Kind, resource: Resource, namespace: str | None, body: Any, *, dry_run: bool) -> Object:
        """The new object."""
        obj = decode_body(kind, resource.api_version, body)
        space = self._placed(kind, namespace, obj)
        key = Key(kind.key, space, self._named(kind, space, obj))
        if obj["metadata"].get("resourceVersion"):
            raise BadRequest("resourceVersion should not be set on objects to be created")
        obj = admit_create(self._context, kind, obj)
        if self._store.get(key) is not None:
            raise AlreadyExists(f'{kind.key} "{key.name}" already exists')
        obj["apiVersion"] = kind.resource.api_version
        object_admission.check_quota(self._context, kind, obj)
        if dry_run:
            return obj
        stored = self._store.put(key, obj)
        stored = object_admission.with_quota_status(self._context, key, stored)
        if key.kind == _CRDS_KEY:
            self._context.registry.define(stored)
        if key.kind == "events":
            self._forget_old_events(space)
        if owner_references(stored):
            self._reaper.consider(key)
        return stored

    def _forget_old_events(self, namespace: str) -> None:
        """Delete events an hour after they were last seen, as Kubernetes does; checked when one is added."""
        limit = format_time(self._context.clock() - _EVENT_SECONDS)
        old: list[str] = []
        for name, event in self._store.by_age("events", namespace).items():
            if event["metadata"]["creationTimestamp"] >= limit:
                break
            if (event.get("lastTimestamp") or "") < limit:
                old.append(name)
        for name in old:
            self._reaper.gone(Key("events", namespace, name))

    def _placed(self, kind: Kind, namespace: str | None, obj: Object) -> str:
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
            name = metadata.get("name", "")
            raise AdmissionDenied(
                f'{kind.key} "{name}" is forbidden: unable to create new content in namespace {space} because it is '
                "being terminated"
            )
        return str(space)

    def _named(self, kind: Kind, namespace: str, obj: Object) -> str:
        metadata = obj["metadata"]
        for field in ("name", "generateName"):
            if not isinstance(metadata.get(field) or "", str):
                raise BadRequest(f"metadata.{field} must be a string")
        if not metadata.get("name") and metadata.get("generateName"):
            for _ in range(_NAME_ATTEMPTS):
                metadata["name"] = object_validation.generate_name(metadata["generateName"], self._context.dice)
                if self._store.get(Key(kind.key, namespace, metadata["name"])) is None:
                    break
        return metadata.get("name") or ""

    def replace(
        self, kind: Kind, resource: Resource, key: Key, body: Any, *, subresource: str, dry_run: bool
    ) -> Object:
        """The object after a PUT."""
        obj = decode_body(kind, resource.api_version, body)
        metadata = obj["metadata"]
        if metadata.setdefault("name", key.name) != key.name:
            raise BadRequest(
                f"the name of the object ({metadata['name']}) does not match the name on the URL ({key.name})"
            )
        if key.namespace and metadata.setdefault("namespace", key.namespace) != key.namespace:
            raise BadRequest("the namespace of the provided object does not match the namespace sent on the request")
        old = self._existing(kind, key)
        if not metadata.get("resourceVersion") and not kind.unconditional:
            problem = Problem("metadata.resourceVersion", "Invalid value: 0: must be specified for an update")
            raise Invalid(error_subject(kind, obj), [problem])
        return self._update(kind, key, old, obj, subresource=subresource, dry_run=dry_run)

    def patch(
        self,
        kind: Kind,
        key: Key,
        body: Any,
        *,
        how: PatchType,
        view: Callable[[Object], Object],
        subresource: str,
        dry_run: bool,
    ) -> Object:
        """The object after a PATCH."""
        if kind.custom and how is PatchType.STRATEGIC:
            raise UnsupportedMediaType(
                f"the body of the request was in an unknown format: {kind.key} take {PatchType.MERGE}, {PatchType.JSON}"
            )
        try:
            change = deep_copy_json(body)
        except (TypeError, RecursionError) as error:
            raise BadRequest(f"the patch is not JSON: {error}") from error
        old = self._existing(kind, key)
        before = view(old)
        new = apply_patch(before, change, how)
        metadata = new.get("metadata")
        if not isinstance(metadata, dict) or new.get("apiVersion") != before["apiVersion"]:
            raise BadRequest("a patch may not change the apiVersion or remove the metadata")
        if metadata.get("name") != key.name:
            raise BadRequest(
                f"the name of the object ({metadata.get('name')}) does not match the name on the URL ({key.name})"
            )
        if (uid := metadata.get("uid")) != old["metadata"]["uid"]:
            problem = Problem("metadata.uid", f'Invalid value: "{uid}": field is immutable')
            raise Invalid(error_subject(kind, old), [problem])
        new = decode_body(kind, before["apiVersion"], new, before)
        return self._update(kind, key, old, new, subresource=subresource, dry_run=dry_run)

    def _update(self, kind: Kind, key: Key, old: Object, new: Object, *, subresource: str, dry_run: bool) -> Object:
        _check_preconditions(kind, key, old["metadata"], new["metadata"])
        new = admit_update(self._context, kind, old, new, subresource)
        new["apiVersion"] = kind.resource.api_version
        if new == old:
            return old
        if dry_run:
            return new
        stored = self._store.put(key, new)
        stored = object_admission.with_quota_status(self._context, key, stored)
        if key.kind == _CRDS_KEY:
            self._context.registry.define(stored)
        if self._reaper.done(key, stored) or owner_references(stored) != owner_references(old):
            self._reaper.consider(key)
        return stored

    def bind(self, key: Key, node: str) -> Object:
        """The pod on its node, with its PodScheduled condition."""
        kind = self._context.registry.by_key(key.kind)
        pod = self._existing(kind, key)
        if pod["metadata"].get("deletionTimestamp"):
            raise Conflict(f"pod {key.name} is being deleted, cannot be assigned to a host")
        if taken := pod["spec"].get("nodeName"):
            raise Conflict(f'pod {key.name} is already assigned to node "{taken}"')
        if pod["spec"].get("schedulingGates"):
            raise Conflict(f"pod {key.name} has non-empty .spec.schedulingGates")
        condition = {
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": self._context.now(),
        }
        status = pod.get("status") or {}
        others = [item for item in status.get("conditions") or () if item.get("type") != "PodScheduled"]
        bound = {
            **pod,
            "spec": {**pod["spec"], "nodeName": node},
            "status": {**status, "conditions": [*others, condition]},
        }
        return self._store.put(key, bound)

    def register_stored_crds(self) -> None:
        """After a restart: serve the kinds of the stored CustomResourceDefinitions again."""
        for _, _, crd in self._store.scan(_CRDS_KEY, None):
            self._context.registry.define(crd)

    def _existing(self, kind: Kind, key: Key) -> Object:
        obj = self._store.get(key)
        if obj is None:
            raise object_not_found(kind, key.name)
        return obj


def _check_preconditions(kind: Kind, key: Key, old: Object, new: Object) -> None:
    """Optimistic concurrency: a writer that read an older version, or another object of that name, loses."""
    version, uid = new.get("resourceVersion"), new.get("uid")
    if uid and uid != old["uid"]:
        raise Conflict(
            f'Operation cannot be fulfilled on {kind.key} "{key.name}": the UID in the precondition ({uid}) does not '
            f"match the UID in record ({old['uid']})"
        )
    if version and version != old["resourceVersion"]:
        raise Conflict(
            f'Operation cannot be fulfilled on {kind.key} "{key.name}": the object has been modified; please apply '
            "your changes to the latest version and try again"
        )
