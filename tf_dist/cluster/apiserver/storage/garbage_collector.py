"""Deletion: grace periods, finalizers, owner references and namespaces.

The rules:
 1. An object with finalizers, or a pod that a node agent may still run, is only marked. It is removed when both are
    done.
 2. The removal of an owner removes its dependents. A dependent with another owner only loses the reference.
 3. Foreground: the owner stays marked until its blocking dependents are removed. Orphan: references are removed first.
 4. A namespace is removed after its content. Consequences are processed from a queue before the verb returns, so deep
    trees need no deep stack. If a write to disk fails, the item stays in the queue and is retried, because the verb
    itself has taken effect and no client would repeat it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass

from tf_dist.cluster.api import Object, has_ended
from tf_dist.cluster.api_errors import BadRequest
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.cluster.apiserver.storage.object_admission import ServerContext, update_quota_status
from tf_dist.cluster.apiserver.storage.store import Key, owner_references, with_metadata
from tf_dist.core.dialects.pod_template import DEFAULT_GRACE_SECONDS
from tf_dist.core.model.timestamps import format_time
from tf_dist.errors import ClusterError, Conflict, Forbidden

_log = logging.getLogger(__name__)
_SHORTEST, _LONGEST = 0.1, 5.0  # seconds until failed writes are retried
FOREGROUND_FINALIZER = "foregroundDeletion"
_PROTECTED = frozenset({"default", "kube-system", "kube-public"})
POLICIES = ("Background", "Foreground", "Orphan")


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Delete options: preconditions, grace period in seconds (None: the pod's own), propagation policy."""

    uid: str = ""
    version: str = ""
    grace_period: int | None = None
    propagation: str = "Background"


class GarbageCollector:
    """Deletes and collects. Every method expects the store's lock to be held."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._store = context.store
        self._todo: deque[Key] = deque()
        self._undefined: dict[Key, None] = {}  # objects of kinds whose CRD was removed
        self._unserved: list[str] = []  # such kinds; their watches end after the deletions
        self._timer: threading.Timer | None = None
        self._pause = _SHORTEST
        self._closed = False

    def delete(self, key: Key, obj: Object, options: DeleteOptions) -> Object | None:
        """Delete or mark the object. Returns the marked object, or None when it is removed."""
        self.check(key, obj, options)
        left = self._begin(key, obj, options)
        self.process_queue()
        return left

    def check(self, key: Key, obj: Object, options: DeleteOptions) -> None:
        """Refuse deletions that are not allowed; Conflict, Forbidden, BadRequest."""
        metadata = obj["metadata"]
        for field, wanted in (("uid", options.uid), ("resourceVersion", options.version)):
            if wanted and wanted != metadata[field]:
                raise Conflict(
                    f'Operation cannot be fulfilled on {key.kind} "{key.name}": the {field} in the precondition '
                    f"({wanted}) does not match the {field} in record ({metadata[field]})"
                )
        if key.kind == "namespaces" and key.name in _PROTECTED:
            raise Forbidden(f'namespaces "{key.name}" is forbidden: this namespace may not be deleted')
        if options.propagation not in POLICIES:
            raise BadRequest(f"invalid propagationPolicy {options.propagation!r}: one of {', '.join(POLICIES)}")

    def _begin(self, key: Key, obj: Object, options: DeleteOptions) -> Object | None:
        uid = obj["metadata"]["uid"]
        for dependent in self._store.dependents(uid) if options.propagation == "Orphan" else ():
            if other := self._store.get(dependent):
                kept = [owner for owner in owner_references(other) if owner["uid"] != uid]
                self._store.put(dependent, with_metadata(other, ownerReferences=kept or None))
        finalizers = list(obj["metadata"].get("finalizers") or ())
        foreground = options.propagation == "Foreground" and self._store.dependents(uid)
        if foreground and FOREGROUND_FINALIZER not in finalizers:
            finalizers.append(FOREGROUND_FINALIZER)
        return self._settle(key, self._marked(key, obj, finalizers, self._grace(key, obj, options)))

    def _grace(self, key: Key, obj: Object, options: DeleteOptions) -> int:
        spec = obj.get("spec") or {}
        if key.kind != "pods" or not spec.get("nodeName") or has_ended(obj):
            return 0
        wanted = options.grace_period
        if wanted is None:
            wanted = int(spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS))
        before = obj["metadata"].get("deletionGracePeriodSeconds")
        # A second delete may shorten the grace, never lengthen it.
        return max(0, wanted) if before is None else max(0, min(wanted, before))

    def _marked(self, key: Key, obj: Object, finalizers: list[str], grace: int) -> Object:
        metadata = obj["metadata"]
        same = (metadata.get("deletionGracePeriodSeconds"), metadata.get("finalizers") or []) == (grace, finalizers)
        if metadata.get("deletionTimestamp") and same:
            return obj
        changes: Object = {
            "deletionTimestamp": format_time(self._context.clock() + grace),
            "deletionGracePeriodSeconds": grace,
            "finalizers": finalizers or None,
        }
        if "generation" in metadata and "deletionTimestamp" not in metadata:
            changes["generation"] = metadata["generation"] + 1
        marked = with_metadata(obj, **changes)
        if key.kind == "namespaces":
            marked["status"] = {**marked.get("status", {}), "phase": "Terminating"}
        return marked

    def _settle(self, key: Key, marked: Object) -> Object | None:
        """Remove the object if nothing blocks it. Otherwise keep it marked, and start the deletions that it
        waits for.
        """
        old = self._store.get(key)
        if self.done(key, marked):
            self.gone(key)
            return None
        stored = self._store.put(key, marked) if marked is not old else marked
        if key.kind == "namespaces":
            self._todo.extend(self._store.in_namespace(key.name))
        if FOREGROUND_FINALIZER in (stored["metadata"].get("finalizers") or ()):
            self._todo.extend(self._store.dependents(stored["metadata"]["uid"]))
            self._todo.append(key)
        return stored

    def done(self, key: Key, obj: Object) -> bool:
        """Whether a marked object can be removed."""
        metadata = obj["metadata"]
        if not metadata.get("deletionTimestamp") or metadata.get("finalizers"):
            return False
        if key.kind == "namespaces":
            return not self._store.in_namespace(key.name)
        return not metadata.get("deletionGracePeriodSeconds")

    def gone(self, key: Key) -> None:
        """Remove an object from the store, and queue the objects that this affects."""
        last = self._store.remove(key)
        self._todo.extend(self._store.dependents(last["metadata"]["uid"]))
        for owner in owner_references(last):
            if above := self._store.by_uid(owner["uid"]):
                self._todo.append(above)
        if key.namespace:
            self._todo.append(Key("namespaces", "", key.namespace))
            update_quota_status(self._context, key)
        if key.kind == f"{CRDS.plural}.{CRDS.group}":
            self._undefine(last)

    def _undefine(self, crd: Object) -> None:
        kind = self._context.registry.forget(crd)
        if kind:
            found = [Key(kind.key, namespace, name) for namespace, name, _ in self._store.scan(kind.key, None)]
            self._undefined |= dict.fromkeys(found)
            self._todo.extend(found)
            self._unserved.append(kind.key)

    # Consequences

    def consider(self, key: Key) -> None:
        """Queue an object whose owners or finalizers a write has changed."""
        self._todo.append(key)
        self.process_queue()

    def resync_all(self) -> None:
        """Finish deletions that a killed process left incomplete. Called after a restart."""
        owned = self._store.owned()
        owners = (owner["uid"] for key in owned for owner in owner_references(self._store.get(key) or {"metadata": {}}))
        above = (self._store.by_uid(uid) for uid in dict.fromkeys(owners))
        self._todo.extend(owned)
        self._todo.extend(key for key in above if key)
        for _, name, _ in self._store.scan("namespaces", None):
            self._todo.append(Key("namespaces", "", name))
            if self._is_leaving(name):
                self._todo.extend(self._store.in_namespace(name))
        self.process_queue()

    def process_queue(self) -> None:
        """Process every queued object; failed writes are retried later."""
        refused: list[Key] = []
        while self._todo:
            key = self._todo.popleft()
            obj = self._store.get(key)
            try:
                if obj is not None:
                    self._reconsider(key, obj)
            except ClusterError as error:
                if not self._closed:
                    _log.warning("failed to delete dependent: kind=%s object=%s/%s error=%s", *key, error)
                refused.append(key)
            else:
                self._undefined.pop(key, None)
        while self._unserved:
            self._store.hang_up(self._unserved.pop())
        self._todo.extend(dict.fromkeys(refused))
        if not self._todo:
            self._pause = _SHORTEST
        elif self._timer is None and not self._closed:
            self._timer = threading.Timer(self._pause, self._try_again)
            self._timer.daemon = True
            self._pause = min(2 * self._pause, _LONGEST)
            self._timer.start()

    def _try_again(self) -> None:
        with self._store.lock:
            self._timer = None
            if not self._closed:
                self.process_queue()

    def close(self) -> None:
        """Stop retrying. The next start finds the remaining deletions."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _reconsider(self, key: Key, obj: Object) -> None:
        metadata = obj["metadata"]
        if key in self._undefined:
            self.gone(key)
            return
        if not metadata.get("deletionTimestamp") and self._is_leaving(key.namespace):
            self._begin(key, obj, DeleteOptions())
            return
        if FOREGROUND_FINALIZER in (metadata.get("finalizers") or ()) and not self._blocked(metadata["uid"]):
            rest = [name for name in metadata["finalizers"] if name != FOREGROUND_FINALIZER]
            obj = self._store.put(key, with_metadata(obj, finalizers=rest or None))
        if self.done(key, obj):
            self.gone(key)
        elif obj["metadata"].get("ownerReferences"):
            self._collect(key, obj)

    def _blocked(self, uid: str) -> bool:
        for key in self._store.dependents(uid):
            obj = self._store.get(key)
            if obj and any(owner["uid"] == uid and owner.get("blockOwnerDeletion") for owner in owner_references(obj)):
                return True
        return False

    def _collect(self, key: Key, obj: Object) -> None:
        owners = owner_references(obj)
        states = [self._owner_state(key, owner) for owner in owners]
        if all(state == "alive" for state in states):
            return
        if "alive" in states:
            kept = [owner for owner, state in zip(owners, states, strict=True) if state == "alive"]
            self._store.put(key, with_metadata(obj, ownerReferences=kept))
        elif not obj["metadata"].get("deletionTimestamp"):
            policy = "Foreground" if "leaving" in states else "Background"
            self._begin(key, obj, DeleteOptions(propagation=policy))

    def _owner_state(self, key: Key, owner: Object) -> str:
        """Whether an owner exists, is being deleted in the foreground, or is absent. An owner of unknown kind counts as
        existing.
        """
        kind = self._context.registry.of(owner["apiVersion"], owner["kind"])
        if kind is None:
            return "alive"
        above = self._store.by_uid(owner["uid"])
        found = self._store.get(above) if above else None
        if above is None or found is None or above.namespace not in ("", key.namespace):
            return "absent"
        return "leaving" if FOREGROUND_FINALIZER in (found["metadata"].get("finalizers") or ()) else "alive"

    def _is_leaving(self, namespace: str) -> bool:
        found = self._store.get(Key("namespaces", "", namespace)) if namespace else None
        return found is not None and "deletionTimestamp" in found["metadata"]
