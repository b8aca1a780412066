"""Execution of plans: owners of objects, conflicts, and updates of the caches.

The leadership is checked before every try of a request, including the client's own retries.
"""

from __future__ import annotations

import base64
import math
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from tests.controller.harness import Hands, World, container, disturbed, tfjob
from tests.faults.proxy import Fault, Kind, Passed, Proxy
from tf_dist.cluster.api import CONFIG_MAPS, EVENTS, PODS, SECRETS, TFJOBS, Cluster, Object, Resource
from tf_dist.cluster.apiserver.server import ApiServer
from tf_dist.cluster.client.event_recorder import EventRecorder
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.cluster.client.retries import fence_seconds_left
from tf_dist.controller.controller import Controller
from tf_dist.controller.informers.informer_set import InformerSet
from tf_dist.controller.leader_election import LeadershipLost
from tf_dist.controller.observability.metrics_interface import Metric, MetricsRecorder
from tf_dist.controller.plan_executor import NameConflict, PlanExecutor
from tf_dist.controller.settings import ControllerContext, ControllerSettings, JobRef
from tf_dist.core.model import names
from tf_dist.core.model.context import Action, Create, Delete, DeleteJob, EnsureKeys, Plan, Update, WriteStatus
from tf_dist.core.model.status import Status
from tf_dist.core.podbuilder.volcano_plugins import config_map_name
from tf_dist.errors import AlreadyExists, ClusterError, Conflict, Forbidden, NotFound, Unavailable

REF = JobRef(TFJOBS, "default", "mnist")


class Results(MetricsRecorder):
    def __init__(self) -> None:
        self.acted_on: list[tuple[str, str]] = []

    def record(self, metric: Metric, *labels: str, value: float = 1.0) -> None:
        if metric is Metric.ACTIONS:
            kind, result = labels
            self.acted_on.append((kind, result))


class Bench:
    """A stored job, the informers of a controller, and a plan executor whose requests ``before`` can disturb."""

    def __init__(self) -> None:
        self.world = World()
        self.memory = self.world.memory
        self.before: Callable[..., object] = lambda *_, **__: None
        self.asked: list[tuple[str, str]] = []
        self.results = Results()
        self.may_act: Callable[[], bool] = lambda: True
        self.left: Callable[[], float] = lambda: math.inf
        cluster: Cluster = disturbed(self.memory, self._asked)
        context = ControllerContext(cluster=cluster, clock=self.world.clock, recorder=self.results)
        self.informers = InformerSet(
            context, on_job=lambda *_: None, on_owned=lambda *_: None, on_capacity_freed=lambda: None
        )
        self.job = self.world.submit(tfjob())
        self.uid = str(self.job["metadata"]["uid"])
        self.applier = PlanExecutor(
            context,
            self.informers,
            EventRecorder(cluster, self.world.clock, "test", monotonic=self.world.clock, permission=self._leading_for),
            wrote=lambda *_: None,
            remaining=lambda _: self.left() if self.may_act() else 0.0,
        )
        self.look()

    def _leading_for(self) -> float:
        if not self.may_act():
            raise LeadershipLost("another drives")
        return self.left()

    def _asked(self, verb: str, resource: Resource, *args: Any, **how: Any) -> None:
        self.asked.append((verb, args[1] if len(args) > 1 and isinstance(args[1], str) else resource.plural))
        self.before(verb, resource, *args, **how)

    def pod(self, name: str, owner: Object | None) -> Object:
        """A pod of a job."""
        uid = owner["metadata"]["uid"] if owner else "none"
        labels = {names.JOB_UID: uid, names.REPLICA_TYPE: "worker", names.REPLICA_INDEX: "0"}
        body: Object = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels},
            "spec": {"containers": [container()]},
        }
        if owner is not None:
            called = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"]}
            body["metadata"]["ownerReferences"] = [{**called, "uid": uid, "controller": True}]
        return body

    def stored(self, name: str) -> Object:
        return self.memory.get(PODS, "default", name)

    def put(self, name: str) -> str:
        """Create a pod of the job, and return its uid."""
        return str(self.memory.create(PODS, "default", self.pod(name, self.job))["metadata"]["uid"])

    def look(self) -> None:
        """Bring the caches up to date."""
        self.informers.refresh()
        self.asked.clear()

    def apply(self, *actions: Action) -> None:
        self.applier.apply(REF, self.job, Plan(Status(), actions))

    def cached(self) -> dict[str, Object]:
        return {pod["metadata"]["name"]: pod for pod in self.informers.pods("default", self.uid)}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def refuse(times: int, verb: str, error: ClusterError) -> Callable[..., None]:
    """The first ``times`` requests with this verb for pods fail with the error."""
    left = [times]

    def before(asked: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (asked, resource) == (verb, PODS) and left[0]:
            left[0] -= 1
            raise error

    return before


@pytest.mark.parametrize("now", ["gone", "being deleted", "another"])
def test_nothing_is_created_for_job_known_as_deleted(bench: Bench, now: str) -> None:
    """The garbage collector would have to delete the object, which uses quota until then."""
    if now == "being deleted":
        bench.memory.patch(TFJOBS, "default", "mnist", {"metadata": {"finalizers": ["example.com/keep"]}})
    bench.memory.delete(TFJOBS, "default", "mnist")
    if now == "another":
        bench.world.submit(tfjob())
    bench.look()
    with pytest.raises(NotFound):
        bench.apply(Create(bench.pod("a", bench.job)))
    assert bench.memory.list(PODS, "default").items == []
    assert bench.memory.list(EVENTS, "default").items == []


def test_conflict_on_existing_pod_does_not_count_as_deletion(bench: Bench) -> None:
    """The rest of the plan is out of date. The pod still runs and stays in the cache."""
    first, second = bench.put("a"), bench.put("b")
    bench.look()
    bench.before = refuse(1, "delete", Conflict("try again"))
    with pytest.raises(Conflict):
        bench.apply(Delete("Pod", "a", first), Delete("Pod", "b", second))
    assert set(bench.cached()) == {"a", "b"}
    assert not any("deletionTimestamp" in pod["metadata"] for pod in (bench.stored("a"), bench.stored("b")))
    assert bench.results.acted_on == [("Delete", "Conflict")]


@pytest.mark.parametrize("again", [True, False], ids=["another has its name", "nothing has"])
def test_pod_that_is_already_gone_counts_as_deleted(bench: Bench, again: bool) -> None:
    uid, other = bench.put("a"), bench.put("b")
    bench.look()
    bench.memory.delete(PODS, "default", "a", grace_period=0)
    new = bench.put("a") if again else ""
    bench.apply(Delete("Pod", "a", uid), Delete("Pod", "b", other))
    assert set(bench.cached()) == {"b"}, "no later look is needed to know that it is gone"
    assert "deletionTimestamp" in bench.cached()["b"]["metadata"]
    if again:
        assert bench.stored("a")["metadata"]["uid"] == new
        assert "deletionTimestamp" not in bench.stored("a")["metadata"]


def test_pod_that_disappears_during_conflict_counts_as_deleted(bench: Bench) -> None:
    uid = bench.put("a")
    bench.look()

    def before(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("delete", PODS):
            bench.memory.delete(PODS, "default", "a", grace_period=0)
            raise Conflict("another client was faster")

    bench.before = before
    bench.apply(Delete("Pod", "a", uid))
    assert bench.cached() == {}


def test_new_job_of_same_name_is_not_deleted(bench: Bench) -> None:
    bench.memory.delete(TFJOBS, "default", "mnist")
    new = bench.world.submit(tfjob())
    bench.look()
    bench.apply(DeleteJob())
    assert bench.world.job()["metadata"]["uid"] == new["metadata"]["uid"]
    assert bench.informers.job(REF) is not None


def test_job_is_deleted_with_single_request(bench: Bench) -> None:
    bench.look()
    bench.apply(DeleteJob())
    assert bench.memory.list(TFJOBS).items == []
    assert bench.asked == [("delete", "mnist")]


# Names that are taken


def test_existing_object_of_job_is_adopted(bench: Bench) -> None:
    """The answer to its creation was lost, or the caches lag."""
    bench.look()
    uid = bench.put("a")
    bench.apply(Create(bench.pod("a", bench.job)))
    assert bench.cached()["a"]["metadata"]["uid"] == uid
    assert bench.results.acted_on == [("Create", "ok")]


@pytest.mark.parametrize(
    ("owned", "told"),
    [(False, "belongs to no controller, not to this job"), (True, "belongs to TFJob other, not to this job")],
)
def test_pod_of_another_owner_is_name_conflict(bench: Bench, owned: bool, told: str) -> None:
    bench.look()
    other = bench.world.submit(tfjob("other")) if owned else None
    bench.memory.create(PODS, "default", bench.pod("a", other))
    with pytest.raises(NameConflict, match=told) as caught:
        bench.apply(Create(bench.pod("a", bench.job)), Create(bench.pod("b", bench.job)))
    assert caught.value.hint == "rename the job, or ask the owner of Pod a to remove it"
    assert not caught.value.leaving
    assert bench.cached() == {}
    with pytest.raises(NotFound):
        bench.stored("b")


@pytest.mark.parametrize(
    ("controls", "told"), [(False, "belongs to no controller, not"), (True, "belongs to TFJob other, not")]
)
def test_name_conflict_names_controller_among_owners(bench: Bench, controls: bool, told: str) -> None:
    """The job itself is an owner, but not the controller, as after an edit of the reference by another client."""
    bench.look()
    pod = bench.pod("a", bench.job)
    [owner] = pod["metadata"]["ownerReferences"]
    uid = bench.world.submit(tfjob("other"))["metadata"]["uid"]
    other = {**owner, "name": "other", "uid": uid, "controller": controls}
    pod["metadata"]["ownerReferences"] = [{**owner, "controller": False}, other]
    bench.memory.create(PODS, "default", pod)
    with pytest.raises(NameConflict, match=told) as caught:
        bench.apply(Create(bench.pod("a", bench.job)))
    assert not caught.value.leaving


def test_plan_stops_when_existing_pod_disappears(bench: Bench) -> None:
    bench.look()
    bench.before = refuse(1, "create", AlreadyExists("a is there"))
    with pytest.raises(NotFound):
        bench.apply(Create(bench.pod("a", bench.job)), Create(bench.pod("b", bench.job)))
    with pytest.raises(NotFound):
        bench.stored("b")


# Keys


def key_secret(owner: Object | None, **data: str) -> Object:
    pod = Bench.pod(None, "mnist-ssh", owner)  # type: ignore[arg-type]
    return {"apiVersion": "v1", "kind": "Secret", "metadata": pod["metadata"], "data": {"config": "", **data}}


def decoded(secret: Object) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in secret["data"].items()}


def test_key_pair_is_created_only_once(bench: Bench) -> None:
    bench.apply(EnsureKeys(key_secret(bench.job)))
    stored = bench.memory.get(SECRETS, "default", "mnist-ssh")
    bench.apply(EnsureKeys(key_secret(bench.job)))
    assert bench.memory.get(SECRETS, "default", "mnist-ssh") == stored
    data = decoded(stored)
    private = load_pem_private_key(data["id_rsa"], None)
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    assert data["id_rsa.pub"] == data["authorized_keys"] == public + b"\n"
    assert data["id_rsa"].startswith(b"-----BEGIN RSA PRIVATE KEY-----")
    bench.memory.delete(SECRETS, "default", "mnist-ssh")
    bench.apply(EnsureKeys(key_secret(bench.job)))
    assert decoded(bench.memory.get(SECRETS, "default", "mnist-ssh"))["id_rsa"] != data["id_rsa"], "no two are equal"


def test_keys_given_in_job_are_kept(bench: Bench) -> None:
    bench.apply(EnsureKeys(key_secret(bench.job, id_rsa="bWluZQ==")))
    assert decoded(bench.memory.get(SECRETS, "default", "mnist-ssh")) == {"config": b"", "id_rsa": b"mine"}


def test_secret_of_another_owner_is_neither_used_nor_overwritten(bench: Bench) -> None:
    other = bench.memory.create(SECRETS, "default", key_secret(None, id_rsa="bWluZQ=="))
    with pytest.raises(NameConflict, match="Secret default/mnist-ssh exists already"):
        bench.apply(EnsureKeys(key_secret(bench.job)))
    assert bench.memory.get(SECRETS, "default", "mnist-ssh") == other


def test_keys_that_another_controller_creates_concurrently_are_used(bench: Bench) -> None:
    def before(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("create", SECRETS):
            bench.memory.create(SECRETS, "default", key_secret(bench.job, id_rsa="bWluZQ=="))

    bench.before = before
    bench.apply(EnsureKeys(key_secret(bench.job)))
    assert decoded(bench.memory.get(SECRETS, "default", "mnist-ssh"))["id_rsa"] == b"mine"


def test_only_pods_are_created_concurrently(bench: Bench) -> None:
    bench.look()
    # The first pod is created alone, and the next two together.
    together, others = threading.Barrier(2), list[str]()

    def before(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("create", PODS) and len(bench.asked) > 2:
            together.wait(60)
        elif resource is CONFIG_MAPS:
            others.append(threading.current_thread().name)

    bench.before = before
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": bench.pod("hosts", bench.job)["metadata"]}
    bench.applier.start(2)
    try:
        bench.apply(Create(config_map), *(Create(bench.pod(f"pod-{number}", bench.job)) for number in range(3)))
    finally:
        bench.applier.stop()
    assert len(bench.cached()) == 3
    assert others == [threading.current_thread().name]


# Updates of the caches


def test_writes_update_caches_before_watch_events(bench: Bench) -> None:
    uid = bench.put("old")
    bench.look()
    bench.apply(
        WriteStatus({"tfDist": {"phase": "Pending"}}), Create(bench.pod("new", bench.job)), Delete("Pod", "old", uid)
    )
    told = [("create", "events"), ("create", "events")]  # pods do not wait for events
    assert bench.asked == [("replace", "mnist"), ("create", "pods"), ("delete", "old"), *told]
    cached = bench.cached()
    assert set(cached) == {"old", "new"}
    assert "deletionTimestamp" in cached["old"]["metadata"]
    job = bench.informers.job(REF)
    assert job is not None
    assert job["status"]["tfDist"]["phase"] == "Pending"
    assert bench.results.acted_on == [("WriteStatus", "ok"), ("Create", "ok"), ("Delete", "ok")]


def test_update_changes_cached_object(bench: Bench) -> None:
    name = config_map_name("mnist")
    body = bench.pod(name, bench.job)["metadata"]
    bench.memory.create(CONFIG_MAPS, "default", {"metadata": body, "data": {"ps.host": "a"}})
    bench.look()
    bench.apply(Update("ConfigMap", name, {"data": {"ps.host": "b"}}))
    assert bench.informers.objects("default", bench.uid)["ConfigMap", name]["data"] == {"ps.host": "b"}


def test_status_is_written_only_over_version_of_decision(bench: Bench) -> None:
    bench.look()
    bench.memory.patch(TFJOBS, "default", "mnist", {"metadata": {"labels": {"edited": "yes"}}})
    with pytest.raises(Conflict):
        bench.apply(WriteStatus({"tfDist": {"phase": "Pending"}}), Create(bench.pod("a", bench.job)))
    assert "status" not in bench.world.job()
    with pytest.raises(NotFound):
        bench.stored("a")


# Leadership


def test_leadership_is_checked_before_every_action(bench: Bench) -> None:
    bench.look()
    answers = chain([True], repeat(False))
    bench.may_act = lambda: next(answers)
    with pytest.raises(LeadershipLost):
        bench.apply(Create(bench.pod("a", bench.job)), Create(bench.pod("b", bench.job)))
    assert bench.asked == [("create", "pods")]
    assert bench.results.acted_on == [("Create", "ok")]


@pytest.mark.parametrize(("seconds", "granted"), [(0.0, False), (0.5, True), (math.inf, True)])
def test_request_lasts_no_longer_than_leadership(bench: Bench, seconds: float, granted: bool) -> None:
    """The client checks the remaining time before every try."""
    bench.look()
    bench.left = lambda: seconds
    allowed: list[tuple[Resource, float]] = []
    bench.before = lambda _, resource, *__, **___: allowed.append((resource, fence_seconds_left()))
    if granted:
        bench.apply(Create(bench.pod("a", bench.job)))
        assert allowed == [(PODS, seconds), (EVENTS, seconds)]
    else:
        with pytest.raises(LeadershipLost):
            bench.apply(Create(bench.pod("a", bench.job)))
        assert bench.memory.list(PODS, "default").items == []


def test_refused_action_is_raised_and_counted(bench: Bench) -> None:
    bench.look()
    bench.before = refuse(1, "create", Forbidden("may not create pods"))
    with pytest.raises(Forbidden):
        bench.apply(Create(bench.pod("a", bench.job)), Create(bench.pod("b", bench.job)))
    assert bench.results.acted_on == [("Create", "Forbidden")]
    assert bench.memory.list(PODS, "default").items == []


@pytest.mark.parametrize(("code", "events"), [(0, 1), (503, 1)], ids=["nothing answers", "events are not taken"])
def test_events_are_not_tried_again_after_failure(bench: Bench, code: int, events: int) -> None:
    bench.look()

    def before(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if resource == EVENTS or (resource == PODS and len(bench.cached()) == 3):
            failure = Unavailable("down")
            failure.code = code
            raise failure

    bench.before = before
    with pytest.raises(Unavailable):
        bench.apply(*(Create(bench.pod(name, bench.job)) for name in "abcd"))
    assert bench.asked.count(("create", "events")) == events


class Lost(Hands):
    """A leadership that lasts for the seconds that the test sets."""

    seconds = float("inf")

    def kinds(self) -> frozenset[Resource]:
        return self.led if self.seconds > 0 else frozenset()

    def remaining(self, kind: Resource) -> float:
        return self.seconds


class Scene:
    """A controller that writes through a proxy, with a client that retries failed requests."""

    def __init__(self, server: ApiServer, world: World) -> None:
        host, _, port = server.url.removeprefix("http://").partition(":")
        self.world = world
        self.leadership = Lost()
        self.proxy = Proxy((host, int(port)), self._passed)
        self.loses = False

    def _passed(self, passed: Passed) -> None:
        """Lose the Lease while the client waits for its next try."""
        if passed.fault is not None and self.loses:
            self.leadership.seconds = 0.0

    def writes(self) -> list[str]:
        return [passed.call.verb for passed in self.proxy.passed if passed.call.writes]

    def creates(self) -> int:
        return sum(p.call.verb == "create" and p.call.resource == "pods" for p in self.proxy.passed)


@pytest.fixture
def scene() -> Iterator[Scene]:
    world = World()
    server = ApiServer(world.memory)
    server.url = server.start()
    try:
        scene = Scene(server, world)
        with scene.proxy, RestCluster(scene.proxy.url, token=server.token, retries=3, sleep=lambda _: None) as client:
            settings = ControllerSettings(volcano_jobs=False)
            clock = world.clock
            world.controller = Controller(
                client, clock=clock, monotonic=clock, leadership=scene.leadership, settings=settings
            )
            yield scene
    finally:
        server.stop()


@pytest.mark.parametrize("kind", [Kind.REFUSE, Kind.RESET, Kind.LOSE], ids=lambda kind: kind.name)
def test_create_is_not_retried_after_loss_of_leadership(scene: Scene, kind: Kind) -> None:
    scene.world.submit(tfjob())
    scene.proxy.inject(Fault(kind, frozenset({"create"}), frozenset({"pods"})))
    scene.loses = True
    scene.world.controller.step()
    assert scene.creates() == 1
    assert len(scene.world.memory.list(PODS).items) == (1 if kind is Kind.LOSE else 0)
    before = scene.writes()
    scene.world.controller.step()
    assert scene.writes() == before


def test_create_is_retried_while_leadership_lasts(scene: Scene) -> None:
    scene.world.submit(tfjob())
    scene.proxy.inject(Fault(Kind.REFUSE, frozenset({"create"}), frozenset({"pods"}), times=2))
    scene.world.settle()
    assert len(scene.world.memory.list(PODS).items) == 3


def test_hanging_request_ends_when_leadership_ends(scene: Scene) -> None:
    hang = 60.0
    scene.world.submit(tfjob())
    scene.proxy.inject(Fault(Kind.HANG, frozenset({"create"}), frozenset({"pods"}), seconds=hang))
    scene.leadership.seconds = 0.5
    scene.loses = True
    began = time.monotonic()
    scene.world.controller.step()
    assert time.monotonic() - began < hang
    assert scene.creates() == 1
    assert scene.world.memory.list(PODS).items == []
