"""Informers: list a resource, watch it from there, resume, list again after 410; a cache and change handlers.

Only newer versions are applied to the cache: repeated or delayed events, and lists from a lagging server, change
nothing. No failure ends the thread. Rules and faults: style-and-libraries reference, section 3.1.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from tf_dist.cluster.api import Cluster, Object, Resource, Stream, WatchEvent
from tf_dist.cluster.client.indexer import Change, Indexer, object_key, parse_resource_version, resource_version_of
from tf_dist.cluster.concurrency import SYSTEM_RUNTIME, ThreadRuntime
from tf_dist.errors import ClusterError, Forbidden, Gone, NotFound, Throttled, Unavailable

_LOG = logging.getLogger(__name__)
_PAGE_SIZE: Final = 500
# Restarts of a list whose pages have expired, before the list counts as failed.
_MAX_RESTARTS: Final = 3
# Seconds. A watch that ends sooner and without an event must not be opened again at once.
_SHORT_WATCH: Final = 1.0
# Seconds of back-off after the first failure, and the maximum.
_MIN_BACKOFF: Final = 0.1
_MAX_BACKOFF: Final = 30.0
# After this number of consecutive lists that are older than known versions, the server must have been restored to an
# older state.
_MAX_STALE_LISTS: Final = 8
# After this number of consecutive failures, or this number of seconds, the outage was long enough for a restore from a
# backup. A request to a server that is starting may take seconds to fail.
_OUTAGE_FAILURES: Final = 6
_OUTAGE_SECONDS: Final = 5.0
# The back-off for a kind that is not served starts as if this number of requests had failed.
_NOT_SERVED_FAILURES: Final = 5


def jittered_backoff(
    failures: int,
    *,
    first: float = _MIN_BACKOFF,
    longest: float = _MAX_BACKOFF,
    uniform: Callable[[float, float], float] = SYSTEM_RUNTIME.uniform,
) -> float:
    """Seconds to wait after this number of consecutive failures: doubling from ``first``, minus up to half at
    random.
    """
    return min(longest, first * 2.0 ** min(failures, 16)) * uniform(0.5, 1.0)


def _goes_back(change: Change) -> bool:
    """Whether a listed object is older than the stored object, or another object of its version.

    In both cases, the server was set back, and its versions have since overtaken ours.
    """
    old, new = change
    return old is not None and new is not None and 0 < resource_version_of(new) <= resource_version_of(old)


class Informer:
    """Follows ``resource`` in a thread.

    ``keep`` reduces an object to what is cached (it must keep ``metadata``). For ``index`` and ``leaves`` see
    ``Indexer``. ``changed`` is called with every change, from the informer's thread or the caller of ``put``;
    ``restarted`` with the kind and the cause when a watch ended early (``problem`` has details); ``relisted`` after
    every list. Two handlers are called before the changes of a list. ``set_back``: the list shows that the server was
    set back (a backup was restored), which watches of other kinds may not notice. ``recovered``: the list is the first
    after an outage. The argument is the time of the first failure (of ``runtime``), because caches of other kinds may
    be older.

    ``pause`` returns the seconds to wait after a number of failures. ``optional``: without the right to read the kind,
    the kind counts as not served. A kind that is not served or not readable is requested repeatedly, because its
    definition or the right may be added later.
    """

    def __init__(
        self,
        cluster: Cluster,
        resource: Resource,
        *,
        changed: Callable[[Object | None, Object | None], None],
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        keep: Callable[[Object], Object] = lambda stored: stored,
        index: Callable[[Object], str] = lambda _: "",
        leaves: Callable[[Object], None] = lambda _: None,
        restarted: Callable[[str, str], None] = lambda *_: None,
        relisted: Callable[[], None] = lambda: None,
        set_back: Callable[[], None] = lambda: None,
        recovered: Callable[[float], None] = lambda _: None,
        pause: Callable[[int], float] | None = None,
        optional: bool = False,
        runtime: ThreadRuntime = SYSTEM_RUNTIME,
    ) -> None:
        self._cluster = cluster
        self.resource = resource
        self._scope = {"namespace": namespace, "labels": labels, "fields": fields}
        self._keep = keep
        self._changed = changed
        self._leaves = leaves
        self._restarted = restarted
        self._relisted = relisted
        self._set_back = set_back
        self._recovered = recovered
        self._runtime = runtime
        self._pause = pause or partial(jittered_backoff, uniform=runtime.uniform)
        self._optional = optional
        self.cache = Indexer(index, leaves=self._is_leaving)
        self.problem: ClusterError | None = None
        self.absent = False  # the server does not serve the kind, so the cache is empty
        self.hidden: Forbidden | None = None  # why an optional kind is not readable
        self.lists = 0  # the number of complete lists
        self.listed_at = -math.inf  # when the last list began
        self._outage_since = math.inf  # when an outage began after which no list has succeeded yet
        self.last_response_at = runtime.monotonic()  # when the server last responded
        self.last_loop_at = self.last_response_at  # when the thread was last active
        self._version = ""  # the newest known version
        self._resume = ""  # where to watch from; "": list first
        self._failures = 0
        self._failing_since = math.inf  # when the first of these failures happened
        self._expiries = 0  # the number of consecutive watches that expired (410) at once
        self._older_lists = 0
        self._listed = runtime.event()
        self._wanted = self._doubted = False
        self._begun = False
        self._stopped = runtime.event()
        self._stirred = runtime.event()
        self._stream: Stream[WatchEvent] | None = None
        self._lock = runtime.lock()
        self._thread = runtime.thread(self._run, f"informer-{resource.label}")

    # Reading

    @property
    def version(self) -> str:
        """The newest known resourceVersion of the kind."""
        return self._version

    def synced(self) -> bool:
        """Whether the cache has everything up to the last list. True for a kind that is not served.

        False while the server refuses to list it, because the cache may be stale.
        """
        return self._listed.is_set()

    def wait_synced(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until the cache is synced."""
        return self._listed.wait(timeout)

    def died(self) -> bool:
        """Whether the thread has ended unexpectedly."""
        return self._begun and not self.alive() and not self._stopped.is_set()

    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def get(self, namespace: str | None, name: str) -> Object | None:
        """One cached object."""
        return self.cache.get((namespace or "", name))

    def items(self) -> list[Object]:
        """Every cached object."""
        return self.cache.items()

    # Writing through

    def put(self, stored: Object) -> None:
        """Store the server's response to a write."""
        if self._known(stored) is None:
            self._tell(self.cache.put_response(self._keep(stored)))

    def discard(self, namespace: str | None, name: str, uid: str) -> None:
        """Remove an object that the server has reported as gone."""
        self._tell(self.cache.discard((namespace or "", name), uid))

    def mark_deleting(self, namespace: str | None, name: str, uid: str, moment: str) -> None:
        """Mark an object whose deletion the server has accepted at ``moment`` (RFC 3339)."""
        self._tell(self.cache.mark_deleting((namespace or "", name), uid, moment))

    def refresh(self) -> None:
        """List now, in the caller's thread; ClusterError when that fails. Only before the informer is started."""
        try:
            self._list()
            if self._wanted:
                self._list()
        except NotFound:
            self._absent()
        except Forbidden as error:
            if not self._optional:
                raise
            self._absent(error)

    def relist(self, *, doubted: bool = False) -> None:
        """List again; ``synced`` is false until the list is complete.

        ``doubted``: the server was set back, and may have reused versions that the cache has.
        """
        with self._lock:
            self._wanted = True
            self._doubted = self._doubted or doubted
            self._listed.clear()
        self._stir()

    # Lifecycle

    def start(self) -> None:
        """Start the thread."""
        self.last_loop_at = self.last_response_at = self._runtime.monotonic()
        self._thread.start()
        self._begun = True

    def end(self) -> None:
        """Signal the thread to end, without waiting, so that several informers stop in parallel."""
        self._stopped.set()
        self._stir()

    def stop(self) -> None:
        """End the thread and wait for it; the cache stays."""
        self.end()
        if self.alive():
            self._thread.join()

    def _stir(self) -> None:
        """Wake the thread from any wait."""
        with self._lock:
            self._stirred.set()
            if self._stream is not None:
                self._stream.close()

    def _run(self) -> None:
        while True:
            self.last_loop_at = self._runtime.monotonic()
            self._stirred.clear()
            if self._stopped.is_set():
                return
            try:
                if self._wanted or not self._resume:
                    self._list()
                if not self._wanted:
                    self._watch()
            except Gone:
                # An event resets the back-off for other failures, but not for expired watches, each of which costs a
                # complete list.
                self._resume, self._failures = "", max(self._failures, self._expiries)
                self._expiries += 1
                self._again("410", None)
            except NotFound:
                self._again("404", None, at_least=_NOT_SERVED_FAILURES, news=self._absent())
            except Forbidden as error:
                self._refused(error)
            except ClusterError as error:
                self._again(type(error).__name__, error)
                lasted = self._runtime.monotonic() - self._failing_since
                away = self._failures >= _OUTAGE_FAILURES or lasted >= _OUTAGE_SECONDS
                if isinstance(error, Throttled):  # a server that throttles is available, and busy
                    continue
                if away or (isinstance(error, Unavailable) and error.restarting):
                    # A restored server may already have newer versions than ours. Then no watch shows which changes it
                    # lost.
                    self._resume, self._outage_since = "", min(self._outage_since, self._failing_since)
            except Exception as error:
                _LOG.exception("informer failed, retrying: resource=%s", self.resource.label)
                self._again("defect", Unavailable(str(error)))

    def _again(self, cause: str, problem: ClusterError | None, at_least: int = 0, *, news: bool = True) -> None:
        """Count and log a failure, and wait for the server's Retry-After or the back-off, whichever is longer.

        ``news``: whether to report it; a kind that is still not served is reported once.
        """
        if self._stopped.is_set():
            return
        if self._failures == 0:
            self._failing_since = self._runtime.monotonic()
        if problem is not None and str(problem) != str(self.problem):
            _LOG.warning("failed to list and watch: resource=%s error=%s", self.resource.label, problem)
        self.problem = problem
        if news:
            self._restarted(self.resource.label, cause)
        asked = problem.after if isinstance(problem, Throttled) else None
        self._stirred.wait(max(asked or 0.0, self._pause(max(self._failures, at_least))))
        self._failures += 1

    # Listing

    def _list(self) -> None:
        with self._lock:
            wanted, self._wanted = self._wanted, False
            doubted, self._doubted = self._doubted, False
        began = self._runtime.monotonic()
        # A server that was restored during an outage may have reused versions.
        compared = doubted or self._outage_since < math.inf
        try:
            listed, version, set_back = self._newest(doubted=doubted, compared=compared)
        except Exception:
            # Only a completed list fulfills a request to list again.
            with self._lock:
                self._wanted = self._wanted or wanted
                self._doubted = self._doubted or doubted
            raise
        self.listed_at, since, self._outage_since = began, self._outage_since, math.inf
        if since < math.inf:
            self._recovered(since)
        changes = self.cache.replace(listed, parse_resource_version(version), set_back=set_back, doubted=compared)
        # When one kind reports a set-back, all kinds are listed with ``doubted``, this kind too: the server may have
        # reused versions. These lists need not report it again.
        if not doubted and (set_back or any(_goes_back(change) for change in changes)):
            self._set_back()
            self.relist(doubted=True)
        for change in changes:
            self._tell(change)
        self._version = self._resume = version
        self.problem = None
        self.lists += 1
        self._hear()
        self._is_there()
        with self._lock:
            # A request that arrived in the meantime needs a list that begins after it.
            if not self._wanted:
                self._listed.set()
        self._relisted()

    def _newest(self, *, doubted: bool, compared: bool) -> tuple[list[Object], str, bool]:
        """The complete list, its version, and whether the server was set back.

        The server was set back if repeated lists, or one list with ``doubted``, are older than known versions. Until
        that is certain, an older list raises Unavailable. The versions of responses to our writes are known, too,
        because lists are never older. ``compared``: see ``_pages``.
        """
        seen = max(parse_resource_version(self._version), self.cache.answered)
        listed, version = self._pages(compared=compared, **self._scope)
        older = parse_resource_version(version) < seen
        if older and not doubted and self._older_lists < _MAX_STALE_LISTS:
            if self._older_lists == 0:
                self._failures = 0  # it responds; the length of the outage does not predict how soon it catches up
            self._older_lists += 1
            raise Unavailable(f"list {self.resource.label}: the answer is older than an earlier answer")
        self._older_lists = 0
        return listed, version, older

    def _pages(self, *, compared: bool, **scope: str | None) -> tuple[list[Object], str]:
        """The complete list, read page by page, restarted when the pages expire (410).

        The raw objects of a page are dropped at once, because those of a large cluster take several GiB. ``compared``:
        objects in a cached version are read, too, in order to compare them.
        """
        for _ in range(_MAX_RESTARTS):
            try:
                return self._paged(scope, compared=compared)
            except Gone:
                _LOG.info("restarting list, its pages have expired: resource=%s", self.resource.label)
        return self._paged(scope, compared=compared)

    def _paged(self, scope: Mapping[str, str | None], *, compared: bool) -> tuple[list[Object], str]:
        kept: list[Object] = []
        continue_ = ""
        while True:
            found = self._cluster.list(self.resource, **scope, limit=_PAGE_SIZE, continue_=continue_)  # type: ignore[arg-type]
            self._hear()
            kept += [(None if compared else self._known(stored)) or self._keep(stored) for stored in found.items]
            version, continue_ = found.resource_version, found.continue_
            if not continue_:
                return kept, version
            del found  # frees its memory while the next page is requested

    def _known(self, stored: Object) -> Object | None:
        """The cached object of the same version, if any, which need not be converted and stored again."""
        metadata = stored["metadata"]
        known = self.cache.get(object_key(stored))
        if known is None or not metadata.get("resourceVersion"):
            return None
        before = known["metadata"]
        same = all(before.get(part) == metadata.get(part) for part in ("resourceVersion", "uid", "deletionTimestamp"))
        return known if same else None

    def _hear(self) -> None:
        self.last_response_at = self.last_loop_at = self._runtime.monotonic()

    def _is_there(self) -> None:
        if self.absent or self.hidden is not None:
            _LOG.info("resource became available: resource=%s", self.resource.label)
        self.absent, self.hidden = False, None

    def _refused(self, error: Forbidden) -> None:
        if self._optional:
            self._again("403", None, at_least=_NOT_SERVED_FAILURES, news=self._absent(error))
            return
        with self._lock:
            self._listed.clear()
        self._resume = ""
        self._again("Forbidden", error)
        self._outage_since = min(self._outage_since, self._failing_since)  # a starting server refuses all requests

    def _absent(self, hidden: Forbidden | None = None) -> bool:
        """Empty the cache, because the kind is not served or, with ``hidden``, because an optional kind is not
        readable. Returns whether this is new.
        """
        news = (self.absent, self.hidden is None) != (hidden is None, hidden is None)
        if news:
            why = str(hidden) if hidden is not None else f"the server does not serve {self.resource.label}"
            _LOG.warning("continuing without resource, retrying: resource=%s reason=%s", self.resource.label, why)
        self.absent, self.hidden, self.problem = hidden is None, hidden, None
        for stored in self.cache.items():
            self._tell(self.cache.discard(object_key(stored), stored["metadata"].get("uid", "")))
        self._resume = ""
        self._hear()
        with self._lock:
            self._listed.set()
        return news

    # Watching

    def _watch(self) -> None:
        stream = self._cluster.watch(self.resource, **self._scope, since=self._resume)  # type: ignore[arg-type]
        with self._lock:
            self._stream = stream
            if self._stirred.is_set():
                stream.close()
        self._hear()
        self.problem = None
        begun, fruitless = self._runtime.monotonic(), True
        try:
            with stream:
                for event in stream:
                    self._hear()
                    if self._take(event):
                        fruitless, self._failures = False, 0
        finally:
            with self._lock:
                self._stream = None
            lasted = self._runtime.monotonic() - begun >= _SHORT_WATCH
            if lasted:
                self._expiries = 0
        if fruitless and not lasted and not self._stirred.is_set():
            self._again("short", None)
        else:
            self._failures = 0

    def _take(self, event: WatchEvent) -> bool:
        """Apply an event. Returns whether it was newer than the cache."""
        version = resource_version_of(event.object)
        # Events of a kind arrive in the order of their versions, so this event is a repetition.
        if version and version <= parse_resource_version(self._version):
            return False
        if event.type == "DELETED":
            self._tell(self.cache.remove(self._keep(event.object)))
        elif event.type != "BOOKMARK" and self._known(event.object) is None:
            self._tell(self.cache.put(self._keep(event.object)))
        self._version = self._resume = event.object["metadata"].get("resourceVersion") or self._resume
        self.cache.followed = max(self.cache.followed, version)
        return True

    def _tell(self, change: Change | None) -> None:
        if change is not None:
            self._call(self._changed, *change)

    def _is_leaving(self, stored: Object) -> None:
        self._call(self._leaves, stored)

    def _call(self, handler: Callable[..., None], *about: Object | None) -> None:
        try:
            handler(*about)
        except Exception:
            _LOG.exception("change handler failed: resource=%s", self.resource.label)


class UidInformer(Informer):
    """An informer with lookup by uid. ``changed(uid)`` is called after every change, from any thread."""

    def __init__(
        self, cluster: Cluster, resource: Resource, changed: Callable[[str], None], *, fields: str = ""
    ) -> None:
        def on_change(old: Object | None, new: Object | None) -> None:
            for uid in {_uid(obj) for obj in (old, new) if obj is not None}:
                changed(uid)

        super().__init__(cluster, resource, changed=on_change, fields=fields, index=_uid)

    def by_uid(self, uid: str) -> Object | None:
        """The object with this uid."""
        return next(iter(self.cache.group(uid)), None)


def _uid(obj: Object) -> str:
    return str(obj["metadata"]["uid"])
