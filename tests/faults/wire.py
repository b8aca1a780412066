"""The network between a simulated process and the API server: a client with retries, and all faults of a network.

The server is the embedded store, called in the same thread. Requests can take time, arrive after their sender has given
up or died, or never arrive. Answers can be lost or stale. Watches can lag, break, and repeat events. The ``Fault``s and
the random choices of the schedule determine all of this.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from tests.faults.calls import Call
from tests.faults.proxy import Fault, Kind
from tests.faults.simulation import Process, Simulation
from tf_dist.cluster.api import ALL_LINES, LogOptions, Object, ObjectList, PatchType, Resource, WatchEvent
from tf_dist.cluster.api_errors import RequestInfo, error_from_status
from tf_dist.cluster.apiserver.storage.list_watch import WatchStream
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.client.retries import RetryPolicy, call_with_retries, fence_seconds_left
from tf_dist.errors import ClusterError, Forbidden, Gone, NotFound, Unavailable

_READ = 30.0
_STALL = 90.0
_BOOKMARK = 60.0
_COLLECTS = 0.01  # seconds for which a garbage collector works on an object whose owner is gone
_REMEMBERED = 4


@dataclass(frozen=True, slots=True)
class Executed:
    """A write that the server has executed or refused. ``late`` means that its sender had already given up."""

    process: str
    call: Call
    body: Any
    before: Object | None
    after: Object | None
    error: ClusterError | None
    late: bool
    component: str = ""


class Server:
    """The API server. ``told`` is called after every write of a process.

    ``leads``: the kinds of jobs that a process leads now, by its name. ``acting`` is called before a write with the
    process, what it led when it sent the write, and whether the write is late; and after the write with None.
    """

    def __init__(self, simulation: Simulation, memory: MemoryCluster) -> None:
        self.simulation = simulation
        self.memory = memory
        self.told: Callable[[Executed], None] = lambda _: None
        self.leads: Callable[[str], frozenset[str]] = lambda _: frozenset()
        self.acting: Callable[[str | None, frozenset[str], bool], None] = lambda *_: None
        self.streams: list[Watch] = []
        self.away = False  # no request arrives
        self._version = -1
        simulation.idle = self.stir

    def stir(self) -> None:
        """Pass changes to the watches, or let them notice that they have ended."""
        version = self.memory._store.version
        if version != self._version:
            self._version = version
            for stream in tuple(self.streams):
                stream.fill()


@dataclass(eq=False)
class Network:
    """The network of a process. ``latency`` (of requests) and ``lag`` (of watches) are averages in seconds."""

    server: Server
    process: Process
    latency: float = 0.0
    lag: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    holding: bool = False
    writes: int = 0
    struck: Counter[str] = field(default_factory=Counter)
    # After this number of writes of these resources or of objects with these names (empty: of any), the process dies,
    # or stops for this number of seconds.
    doom: tuple[int, frozenset[str]] | None = None
    nap: tuple[int, frozenset[str], float] | None = None
    # Until when the process may believe that kinds with these plurals are not served.
    unserved: dict[str, float] = field(default_factory=dict)

    def inject(self, *faults: Fault) -> None:
        """Add faults. The first matching fault affects a request."""
        self.faults += faults

    def withdraw(self, fault: Fault) -> None:
        """End a fault."""
        if fault in self.faults:
            self.faults.remove(fault)

    def calm(self) -> None:
        """End all faults, and release events that are held back."""
        self.faults.clear()
        self.doom = self.nap = None
        self.release_events()

    def hold_events(self) -> None:
        """Hold back the events of all watches."""
        self.holding = True

    def release_events(self) -> None:
        """Release the events that are held back."""
        self.holding = False
        for stream in self.server.streams:
            if stream.network is self:
                stream.wake()

    def disconnect(self, resources: frozenset[str] = frozenset()) -> None:
        """Break the watches of these resources, or all watches if empty."""
        for stream in tuple(self.server.streams):
            if stream.network is self and (not resources or stream.plural in resources):
                stream.break_off()

    def strike(self, call: Call) -> Fault | None:
        """The fault that affects a request."""
        fault = next((fault for fault in self.faults if fault.takes(call)), None)
        if fault is not None:
            self.struck[f"fault {fault.kind.name}"] += 1
            if fault.times == 0:
                self.faults.remove(fault)
        return fault

    def after_write(self, call: Call) -> None:
        """A write has reached the server. The process may now die or stop."""
        self.writes += 1
        what = {call.resource.partition("/")[0], call.name}
        if self.doom is not None and (not self.doom[1] or what & self.doom[1]):
            count = self.doom[0] - 1
            self.doom = (count, self.doom[1]) if count > 0 else None
            if count <= 0:
                self.process.kill()
                self.struck["died after a write"] += 1
        if self.nap is not None and (not self.nap[1] or what & self.nap[1]):
            count, which, seconds = self.nap[0] - 1, self.nap[1], self.nap[2]
            self.nap = (count, which, seconds) if count > 0 else None
            if count <= 0 and not self.process.stopped:
                self.process.stop()
                self.struck["stopped after a write"] += 1
                simulation = self.process.simulation
                simulation.at(simulation.now + seconds, self.process.go_on)

    def delay(self) -> float:
        """A random latency of a request or of its answer."""
        return self.process.simulation.dice.expovariate(1 / self.latency) if self.latency else 0.0


class Wire:
    """A ``Cluster`` over a network. Each try of a request takes at most ``timeout`` seconds."""

    def __init__(self, network: Network, *, retries: int = 3, timeout: float = _READ) -> None:
        self._network = network
        self._server = network.server
        self._memory = network.server.memory
        self._process = network.process
        self._simulation = network.process.simulation
        self._retries = RetryPolicy(max_retries=retries)
        self._timeout = timeout
        self._answers: dict[object, deque[Any]] = {}

    def forget(self) -> None:
        """Forget earlier answers, so that none of them is repeated."""
        self._answers.clear()

    def hurry(self, timeout: float) -> None:
        """Limit each try to this timeout from now on."""
        self._timeout = timeout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Do nothing."""

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
        asked = RequestInfo("list", resource, "", namespace or "")

        def act() -> ObjectList:
            return self._memory.list(
                resource, namespace, labels=labels, fields=fields, limit=limit, continue_=continue_
            )

        key = (resource, namespace, labels, fields, limit, continue_)
        found: ObjectList = self._call(asked, "", act, key=key)
        return found

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        asked = RequestInfo("get", resource, "", namespace or "")
        key = (resource, namespace, name)
        found: Object = self._call(asked, name, lambda: self._memory.get(resource, namespace, name), key=key)
        return found

    def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        since: str = "",
        timeout: float = 290,
    ) -> Watch:
        asked = RequestInfo("watch", resource, "", namespace or "")

        def act() -> WatchStream:
            stream = self._memory.watch(
                resource, namespace, labels=labels, fields=fields, since=since, timeout=math.inf
            )
            assert isinstance(stream, WatchStream)
            return stream

        stream, fault = self._attempt(asked, "", act)
        return Watch(self._network, resource, asked, stream, timeout, fault)

    def logs(self, namespace: str, pod: str, options: LogOptions = ALL_LINES) -> Any:
        raise NotImplementedError

    def addresses(self, owner: Object, endpoints: Sequence[str]) -> Mapping[str, str]:
        return {}

    # Writing

    def create(self, resource: Resource, namespace: str | None, body: Object) -> Object:
        asked = RequestInfo("create", resource, "", namespace or "")
        name = str(body["metadata"].get("name", ""))
        return self._write(asked, name, body, lambda: self._memory.create(resource, namespace, body))

    def replace(
        self, resource: Resource, namespace: str | None, name: str, body: Object, *, subresource: str = ""
    ) -> Object:
        asked = RequestInfo("update", resource, subresource, namespace or "")
        return self._write(
            asked, name, body, lambda: self._memory.replace(resource, namespace, name, body, subresource=subresource)
        )

    def patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        body: Any,
        *,
        kind: PatchType = PatchType.MERGE,
        subresource: str = "",
    ) -> Object:
        asked = RequestInfo("patch", resource, subresource, namespace or "")
        return self._write(
            asked,
            name,
            body,
            lambda: self._memory.patch(resource, namespace, name, body, kind=kind, subresource=subresource),
        )

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
        asked = RequestInfo("delete", resource, "", namespace or "")

        def act() -> None:
            self._memory.delete(
                resource, namespace, name, uid=uid, version=version, grace_period=grace_period, propagation=propagation
            )

        self._write(asked, name, {"uid": uid}, act)

    def _write(self, asked: RequestInfo, name: str, body: Any, act: Callable[[], Any]) -> Any:
        return self._call(asked, name, act, body=body)

    # Requests

    def _call(
        self, asked: RequestInfo, name: str, act: Callable[[], Any], *, body: Any = None, key: object = None
    ) -> Any:
        """Send a request with the retries of the real client."""
        began = self._process.monotonic()

        def pause(error: ClusterError, tries: int) -> float | None:
            elapsed, dice = self._process.monotonic() - began, self._simulation.dice.random()
            return self._retries.pause(error.code, error, tries=tries, elapsed=elapsed, jitter=dice)

        def attempt() -> Any:
            answer, fault = self._attempt(asked, name, act, body=body, stale=self._answers.get(key) if key else None)
            if key is not None and fault is None:
                self._answers.setdefault(key, deque(maxlen=_REMEMBERED)).append(answer)
            return answer

        return call_with_retries(attempt, pause, self._sleep)

    def _sleep(self, seconds: float) -> bool:
        self._simulation.park(self._process.until(seconds))
        return True

    def _attempt(
        self,
        asked: RequestInfo,
        name: str,
        act: Callable[[], Any],
        *,
        body: Any = None,
        stale: deque[Any] | None = None,
    ) -> tuple[Any, Fault | None]:
        """One try of a request. Returns the answer, and the fault that affects a following stream."""
        simulation, network = self._simulation, self._network
        # A process that is stopped here checks its fence when it continues. No time passes between check and request.
        simulation.breathe()
        limit = min(self._timeout, fence_seconds_left())
        call = Call(asked.verb, asked.plural, asked.namespace, name)
        fault = network.strike(call)
        if self._server.away:
            raise self._no_answer(asked, "connection refused", restarting=True)
        request = _Request(self, asked, call, act, body)
        kind = fault.kind if fault is not None else None
        match kind:
            case Kind.REFUSE if fault is not None:
                self._wait(network.delay())
                self._refuse(asked, fault)
            case Kind.RESET:
                raise self._no_answer(asked, "the connection was reset")
            case Kind.LATE if fault is not None:
                simulation.at(simulation.now + fault.seconds, lambda: request.execute(late=True))
                raise self._no_answer(asked, "the connection was reset")
            case Kind.HANG:
                self._wait(limit)
                raise self._no_answer(asked, "timed out")
            case Kind.LOSE:
                request.execute()
                self._wait(network.delay())
                raise self._no_answer(asked, "the connection was reset")
            case Kind.STALE if stale:
                return stale[0], fault
        seconds = fault.seconds if kind is Kind.SLOW and fault is not None else 0.0
        self._send(request, network.delay() + seconds, network.delay(), limit)
        return request.result(), fault

    def _wait(self, seconds: float) -> None:
        if seconds > 0:
            self._simulation.park(self._process.until(seconds))
        if self._process.dead or self._process.stopped:
            self._give_way()

    def _give_way(self) -> None:
        """The process has died or stopped during this request."""
        self._simulation.ready(self._simulation._me())
        self._simulation._leave()

    def _send(self, request: _Request, there: float, back: float, limit: float) -> None:
        """Execute the request after its latency, and wait for the answer for at most ``limit`` seconds."""
        simulation = self._simulation
        if there <= 0 and back <= 0:
            request.execute()
            if self._process.dead or self._process.stopped:
                self._give_way()
            if request.collected:
                self._wait(_COLLECTS)
            simulation.breathe()
            return
        task, end = simulation._me(), self._process.until(limit)

        def answer() -> None:
            if request.waiting:
                simulation.wake(task)

        def arrive() -> None:
            request.execute(late=simulation.now > end)
            simulation.at(simulation.now + back, answer)

        request.waiting = True
        simulation.at(simulation.now + there, arrive)
        answered = simulation.park(end)
        request.waiting = False
        if not answered:
            raise self._no_answer(request.asked, "timed out")

    def _refuse(self, asked: RequestInfo, fault: Fault) -> None:
        text = "the server could not find the requested resource" if fault.code == 404 else "so says the network"
        after = "" if fault.retry_after is None else str(fault.retry_after)
        raise error_from_status(fault.code, {"message": text, "code": fault.code}, asked=asked, retry_after=after)

    def _no_answer(self, asked: RequestInfo, why: str, *, restarting: bool = False) -> Unavailable:
        error = Unavailable(f"{asked}: no answer: {why}")
        error.code, error.restarting = 0, restarting
        return error


class _Request:
    """A request under way."""

    def __init__(self, wire: Wire, asked: RequestInfo, call: Call, act: Callable[[], Any], body: Any) -> None:
        self.asked = asked
        self.waiting = False
        self._wire = wire
        self._call = call
        self._act = act
        self._body = body
        self._answer: Any = None
        self._error: ClusterError | None = None
        self.collected = False  # whether the created object was garbage
        self._led = wire._server.leads(wire._process.name) if call.writes else frozenset()

    def execute(self, *, late: bool = False) -> None:
        """Execute the request on the server."""
        server, network = self._wire._server, self._wire._network
        if server.away:
            self._error = self._wire._no_answer(self.asked, "connection refused")
            return
        before = self._stored() if self._call.writes else None
        if self._call.writes:
            server.acting(self._wire._process.name, self._led, late)
        try:
            self._answer = self._act()
        except (Forbidden, NotFound) as error:
            self._error = error_from_status(error.code, {"message": str(error)}, asked=self.asked)
        except ClusterError as error:
            self._error = error
        finally:
            if self._call.writes:
                server.acting(None, frozenset(), False)
        if self._call.writes:
            self.collected = self._call.verb == "create" and self._error is None and self._stored() is None
            server.told(
                Executed(self._wire._process.name, self._call, self._body, before, self._answer, self._error, late)
            )
            network.after_write(self._call)
            server.stir()

    def _stored(self) -> Object | None:
        resource, call = self.asked.resource, self._call
        try:
            return self._wire._memory.get(resource, call.namespace or None, call.name) if call.name else None
        except ClusterError:
            return None

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._answer


class Watch:
    """A watch over a network. Iterate over it in one thread, and close it in any thread."""

    def __init__(
        self,
        network: Network,
        resource: Resource,
        asked: RequestInfo,
        stream: WatchStream,
        timeout: float,
        fault: Fault | None,
    ) -> None:
        self.network = network
        self.plural = resource.plural
        self._resource = resource
        self._asked = asked
        self._stream = stream
        self._fault = fault
        self._simulation = network.process.simulation
        self._coming: deque[tuple[float, WatchEvent]] = deque()
        self._before: WatchEvent | None = None
        self._told = 0
        self._end = network.process.until(timeout)
        self._heard = self._bookmarked = self._simulation.now
        self._closed = self._broken = self._over = False
        self._problem: ClusterError | None = None
        self._reader: Any = None
        network.server.streams.append(self)
        self.fill()

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def fill(self) -> None:
        """Send new events on their way."""
        simulation, lag = self._simulation, self.network.lag
        try:
            while not self._over and (event := self._stream.poll()) is not None:
                due = simulation.now + (simulation.dice.expovariate(1 / lag) if lag else 0.0)
                self._coming.append((max(due, self._coming[-1][0] if self._coming else 0.0), event))
        except StopIteration:
            self._over = True
        except Gone as error:
            self._over, self._problem = True, error
        if (self._coming or self._over) and self._reader is not None:
            self.wake()

    def wake(self) -> None:
        if self._reader is not None:
            self._simulation.wake(self._reader)

    def break_off(self) -> None:
        """Break the connection."""
        self._broken = True
        self._hang_up()
        self.wake()

    def close(self) -> None:
        self._closed = True
        self._hang_up()
        self.wake()

    def _hang_up(self) -> None:
        if self in self.network.server.streams:
            self.network.server.streams.remove(self)
            self._stream.close()

    def __next__(self) -> WatchEvent:
        simulation = self._simulation
        while True:
            now = simulation.now
            if self._closed:
                raise StopIteration
            if self._broken:
                self.close()
                raise Unavailable(f"{self._asked}: the stream broke")
            if not self.network.holding:
                if self._coming and self._coming[0][0] <= now:
                    return self._tell(self._coming.popleft()[1])
                if self._over and not self._coming:
                    self.close()
                    if self._problem is not None:
                        raise self._problem
                    raise StopIteration
                if now >= self._bookmarked + _BOOKMARK:
                    self.fill()
                    if not self._coming:
                        return self._bookmark()
                if now >= self._end:
                    self.close()
                    raise StopIteration
            if now >= self._heard + _STALL:
                self.close()
                raise StopIteration  # silence ends the watch
            moments = [self._heard + _STALL]
            if not self.network.holding:
                # Events under way come before the next bookmark.
                moments += [self._end, self._coming[0][0] if self._coming else self._bookmarked + _BOOKMARK]
            self._reader = simulation._me()
            simulation.park(max(min(moments), now + 1e-6))
            self._reader = None

    def _tell(self, event: WatchEvent) -> WatchEvent:
        fault, self._heard = self._fault, self._simulation.now
        if fault is not None and self._told >= fault.after:
            if fault.kind is Kind.GONE:
                self.close()
                raise Gone(f"{self._asked}: too old, says the network")
            if fault.kind is Kind.CUT:
                self.close()
                raise Unavailable(f"{self._asked}: the stream broke")
        self._told += 1
        if fault is not None and fault.kind is Kind.TWICE:
            again = [event] if self._before is None else [self._before, event]
            self._coming.extendleft((self._heard, one) for one in again)
            self._before = event
            self._fault = None if self._told > 6 else fault
        return event

    def _bookmark(self) -> WatchEvent:
        self._heard = self._bookmarked = self._simulation.now
        version = str(self.network.server.memory._store.version)
        kind = {"apiVersion": self._resource.api_version, "kind": self._resource.kind}
        return WatchEvent("BOOKMARK", {**kind, "metadata": {"resourceVersion": version}})
