"""Two arbiters never give the same room away, whichever of them sleeps, where, and for how long."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given

from tests.controller.harness import World, disturbed, tfjob
from tests.controller.turns import PLACE, TURNS, Process, Sleepy, Turn, admitted, leave, play
from tests.thorough import thorough
from tf_dist.cluster.api import LEASES, TFJOBS, Resource
from tf_dist.cluster.api_errors import Unauthorized
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.controller.driver_settings import MAX_PENDING_ADMISSIONS, JobRef
from tf_dist.controller.gang_admission.pending_admissions import ADMITTING_ANNOTATION, LeasePendingAdmissions
from tf_dist.controller.leases.leadership import LeadershipLost
from tf_dist.errors import ClusterError, Conflict, Forbidden, Rejected, Unavailable


@given(TURNS)
@thorough(75)
def test_the_sum_of_what_is_given_never_exceeds_the_room(turns: list[Turn]) -> None:
    world = World(cpu="4")
    processes = [Process(world), Process(world)]
    for number in range(4):
        world.submit(tfjob(f"m-{number}"))
    play(world, processes, turns)


def test_a_place_in_the_air_never_arrives_once_the_next_arbiter_has_decided() -> None:
    """The case that the list is for, once in full."""
    world = World(cpu="4")
    slow, quick = Process(world), Process(world)
    world.submit(tfjob("a"))
    world.submit(tfjob("c"))
    slow.step()
    leave(world)

    def meanwhile() -> None:
        """A job comes that is to be first, and c gets its verdict again: no other client writes into it."""
        world.submit(tfjob("b"))
        quick.step()

    # The first write of its next pass names c in the list; the second, before which it sleeps, gives c its place.
    slow.wire.sleep = (1, meanwhile)
    slow.step()
    assert admitted(world) == ["b"]


def test_a_place_that_did_not_arrive_is_written_down_anew_before_it_is_given_again() -> None:
    """Else it would not be noticed that another driver decides by now."""
    world = World(cpu="4")
    process = Process(world)
    process.step()
    world.submit(tfjob("a"))
    process.wire.sleep = (1, lambda: opened(world.memory) and None)
    process.step()
    with pytest.raises(LeadershipLost):
        process.driver.step()
    assert admitted(world) == []


@pytest.fixture
def memory() -> MemoryCluster:
    return MemoryCluster()


def refs(*names: str) -> dict[str, JobRef]:
    return {f"uid-{name}": JobRef(TFJOBS, "default", name) for name in names}


def opened(memory: MemoryCluster, touched: list[str] | None = None) -> LeasePendingAdmissions:
    names = [] if touched is None else touched
    intents = LeasePendingAdmissions(memory, PLACE, lambda ref, _: names.append(ref.name))
    assert intents.open(1)
    return intents


def listed(memory: MemoryCluster) -> list[str]:
    annotations = memory.get(LEASES, *PLACE)["metadata"]["annotations"]
    return [name for _, _, name, _ in json.loads(annotations[ADMITTING_ANNOTATION])]


def test_it_is_opened_once_for_each_mandate(memory: MemoryCluster) -> None:
    intents = opened(memory)
    assert not intents.open(1)
    assert intents.open(2)


def test_what_is_settled_is_left_out_of_the_next_list(memory: MemoryCluster) -> None:
    intents = opened(memory)
    assert intents.record_pending(refs("a", "b")) == {"uid-a", "uid-b"}
    assert listed(memory) == ["a", "b"]
    intents.settle(["uid-a", "uid-unknown"])
    assert intents.declared() == {"uid-b"}
    intents.record_pending(refs("c"))
    assert listed(memory) == ["b", "c"]
    assert intents.declared() == {"uid-b", "uid-c"}
    intents.record_pending(refs("d"))
    assert listed(memory) == ["b", "c", "d"], "what is not settled stays, however often others come"


def written(memory: MemoryCluster) -> str:
    return str(memory.get(LEASES, *PLACE)["metadata"]["resourceVersion"])


def test_a_list_of_settled_jobs_is_emptied_by_one_write(memory: MemoryCluster) -> None:
    intents = opened(memory)
    intents.record_pending(refs("a", "b"))
    before = written(memory)
    intents.settle(["uid-a"])
    intents.forget_settled()
    assert written(memory) == before, "one write after a burst, not one for each job"
    intents.settle(["uid-b"])
    intents.forget_settled()
    assert listed(memory) == []
    before = written(memory)
    intents.forget_settled()
    assert written(memory) == before
    assert intents.record_pending(refs("c")) == {"uid-c"}
    assert listed(memory) == ["c"]


def test_a_list_that_another_leader_has_opened_is_not_emptied(memory: MemoryCluster) -> None:
    intents = opened(memory)
    intents.record_pending(refs("a"))
    intents.settle(["uid-a"])
    opened(memory).record_pending(refs("b"))
    with pytest.raises(LeadershipLost):
        intents.forget_settled()
    assert listed(memory) == ["b"]


def test_the_leader_empties_its_list_once_after_a_burst() -> None:
    """Else every leader after it touches hundreds of jobs that have ended long ago before it admits any."""
    world = World(cpu="12")
    process = Process(world)
    for number in range(4):
        world.submit(tfjob(f"m-{number}"))
    process.step()
    assert len(listed(world.memory)) == 4
    before = int(written(world.memory))
    writes: list[int] = []
    for _ in range(5):
        process.step()
        if int(written(world.memory)) != before:
            before = int(written(world.memory))
            writes.append(before)
    assert len(admitted(world)) == 4
    assert (listed(world.memory), len(writes)) == ([], 1)


@pytest.mark.parametrize("leads", [True, False])
def test_a_leader_that_stops_leaves_an_empty_list_while_the_right_is_its_own(leads: bool) -> None:
    world = World(cpu="4")
    process = Process(world)
    world.submit(tfjob("a"))
    process.step()
    assert (admitted(world), listed(world.memory)) == (["a"], ["a"])
    process.leadership.left = None if leads else 0
    process.driver.stop()
    assert listed(world.memory) == ([] if leads else ["a"])


def test_a_leader_that_stops_leaves_the_jobs_in_the_list_whose_verdicts_are_not_written() -> None:
    world = World(cpu="7")
    process = Process(world)
    world.submit(tfjob("a"))
    world.submit(tfjob("b"))

    def lost() -> None:
        raise Unavailable("no answer")

    process.wire.sleep = (4, lost)  # the list is opened, made empty, and written; then come the verdicts
    process.step()
    assert len(admitted(world)) == 1
    process.wire.sleep = None
    process.driver.stop()
    assert sorted(listed(world.memory)) == ["a", "b"]


def test_the_list_takes_no_more_than_an_object_holds(memory: MemoryCluster) -> None:
    intents = opened(memory)
    many = refs(*(f"{'x' * 50}-{number:04}" for number in range(MAX_PENDING_ADMISSIONS + 7)))
    written = intents.record_pending(many)
    assert len(written) == MAX_PENDING_ADMISSIONS
    assert intents.record_pending(refs("late")) == frozenset()
    intents.settle(written)
    assert (
        intents.record_pending({uid: ref for uid, ref in many.items() if uid not in written}) == many.keys() - written
    )
    assert len(listed(memory)) == 7


def test_a_list_that_is_nearly_full_is_not_written_for_each_job_that_is_settled(memory: MemoryCluster) -> None:
    """It has hundreds of names, and each write carries all of them."""
    intents = opened(memory)
    listed_first = sorted(intents.record_pending(refs(*(f"{number:04}" for number in range(MAX_PENDING_ADMISSIONS)))))
    waiting = refs(*(f"late-{number:04}" for number in range(MAX_PENDING_ADMISSIONS)))
    share, before = MAX_PENDING_ADMISSIONS // 5, written(memory)
    for uid in listed_first[: share - 1]:
        intents.settle([uid])
        assert intents.room(len(waiting)) == 0
    assert written(memory) == before
    assert intents.room(1) == 1, "all that there is to write has room"
    assert len(intents.record_pending(refs("few"))) == 1
    intents.settle([*listed_first[:share], "uid-few"])
    assert intents.room(len(waiting)) == share
    assert len(intents.record_pending(waiting)) == share


def test_the_next_arbiter_touches_what_was_listed_and_shuts_the_last_one_out(memory: MemoryCluster) -> None:
    stored = memory.create(TFJOBS, "default", tfjob("a"))
    first = opened(memory)
    first.record_pending({stored["metadata"]["uid"]: JobRef(TFJOBS, "default", "a"), **refs("gone")})
    touched: list[str] = []
    opened(memory, touched)
    assert touched == ["a"]
    assert listed(memory) == []
    with pytest.raises(Conflict):
        memory.replace(TFJOBS, "default", "a", {**stored, "status": {"late": "True"}}, subresource="status")
    with pytest.raises(LeadershipLost):
        first.record_pending(refs("b"))
    assert listed(memory) == []


@pytest.mark.parametrize("readable", [True, False], ids=["may be read", "may not be read"])
def test_a_listed_job_that_may_not_be_touched_costs_no_other_job_its_place(
    memory: MemoryCluster, readable: bool
) -> None:
    """As where its namespace has taken the rights of drivers away."""
    uids = {name: memory.create(TFJOBS, "default", tfjob(name))["metadata"]["uid"] for name in ("a", "b")}
    opened(memory).record_pending({uid: JobRef(TFJOBS, "default", name) for name, uid in uids.items()})

    def refused(verb: str, resource: Resource, _: Any = None, name: str = "", *__: Any, **___: Any) -> None:
        if resource is TFJOBS and name == "a" and not (readable and verb == "get"):
            raise Forbidden(f"may not {verb} tfjobs there")

    touched: list[str] = []
    intents = LeasePendingAdmissions(disturbed(memory, refused), PLACE, lambda ref, _: touched.append(ref.name))
    with pytest.raises(Forbidden):  # a server that has just started refuses what it allows a moment later
        intents.open(2)
    assert sorted(listed(memory)) == ["a", "b"]
    assert intents.open(2)
    assert touched == ["b"]
    assert intents.declared() == frozenset()
    assert intents.record_pending(refs("c")) == {"uid-c"}
    assert listed(memory) == ["a", "c"], "a leader that may touch it is still to do so"
    intents.settle(["uid-c"])
    intents.forget_settled()
    assert listed(memory) == ["a"]
    opened(memory, touched)
    assert touched == ["b", "a"]
    assert listed(memory) == []


def listed_jobs(memory: MemoryCluster, *names: str) -> list[str]:
    """Jobs that the leader before has listed, in the order of its list."""
    uids = {memory.create(TFJOBS, "default", tfjob(name))["metadata"]["uid"]: name for name in names}
    opened(memory).record_pending({uid: JobRef(TFJOBS, "default", name) for uid, name in uids.items()})
    return listed(memory)


def test_a_job_that_may_not_be_touched_stays_listed_though_another_fails_meanwhile(memory: MemoryCluster) -> None:
    first, second, third = listed_jobs(memory, "a", "b", "c")
    failures = {first: Forbidden("not there"), second: Unavailable("no answer")}

    def refused(verb: str, resource: Resource, _: Any = None, name: str = "", *__: Any, **___: Any) -> None:
        if (verb, resource) == ("patch", TFJOBS) and name in failures:
            raise failures[name]

    touched: list[str] = []
    intents = LeasePendingAdmissions(disturbed(memory, refused), PLACE, lambda ref, _: touched.append(ref.name))
    for _ in range(2):
        with pytest.raises(Unavailable):
            intents.open(1)
    del failures[second]
    assert intents.open(1)
    assert (touched, listed(memory)) == ([second, third], [first])


@pytest.mark.parametrize("error", [Forbidden("not yet"), Unauthorized("the token has expired")])
def test_a_job_that_may_be_touched_a_moment_later_is_touched(memory: MemoryCluster, error: ClusterError) -> None:
    """Had it been passed over, a late verdict of the leader before could still arrive."""
    listed_jobs(memory, "a", "b")
    expired = [True]

    def refused(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if expired[0] and (verb, resource) == ("patch", TFJOBS):
            raise error

    touched: list[str] = []
    second = LeasePendingAdmissions(disturbed(memory, refused), PLACE, lambda ref, _: touched.append(ref.name))
    with pytest.raises(type(error)):
        second.open(1)
    expired[0] = False
    assert second.open(1)
    assert (sorted(touched), listed(memory)) == (["a", "b"], [])


def test_an_expired_token_passes_over_no_job_however_often_it_is_tried(memory: MemoryCluster) -> None:
    listed_jobs(memory, "a")

    def refused(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if resource is TFJOBS:
            raise Unauthorized("the token has expired")

    second = LeasePendingAdmissions(disturbed(memory, refused), PLACE, lambda *_: None)
    for _ in range(3):
        with pytest.raises(Unauthorized):
            second.open(1)


def test_jobs_that_do_not_settle_keep_none_from_the_room_that_is_left(memory: MemoryCluster) -> None:
    """As while a webhook of one namespace is down: the verdicts of its jobs wait, and others have room."""
    intents = opened(memory)
    stuck = 9 * MAX_PENDING_ADMISSIONS // 10
    settling = sorted(intents.record_pending(refs(*(f"{number:04}" for number in range(stuck + 1)))))
    waiting = refs(*(f"late-{number:04}" for number in range(MAX_PENDING_ADMISSIONS)))
    assert intents.room(len(waiting)) == 0
    intents.settle(settling[:1])
    assert intents.room(len(waiting)) == 0, "others may settle as this one did"
    assert intents.room(len(waiting)) == MAX_PENDING_ADMISSIONS - stuck
    assert len(intents.record_pending(waiting)) == MAX_PENDING_ADMISSIONS - stuck
    assert intents.room(len(waiting)) == 0, "it is full"
    assert intents.record_pending(waiting) == frozenset()


def test_jobs_that_may_never_be_touched_take_room_of_the_list(memory: MemoryCluster) -> None:
    """The list is as large as an object may be, however many leaders come and go."""

    def refused(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if resource is TFJOBS:
            raise Forbidden("not there")

    for generation in range(3):
        intents = LeasePendingAdmissions(disturbed(memory, refused), PLACE, lambda *_: None, max_jobs=10)
        with suppress(Forbidden):
            intents.open(1)
        intents.open(1)
        granted = intents.record_pending(refs(*(f"{generation}-{number}" for number in range(10))))
        assert (len(granted), len(listed(memory))) == (5 if generation else 10, 10)


def test_a_job_that_is_gone_is_listed_no_more_though_it_might_not_be_touched(memory: MemoryCluster) -> None:
    opened(memory).record_pending(refs("a"))

    def refused(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if resource is TFJOBS and verb == "patch":
            raise Forbidden("may not patch tfjobs there")

    assert LeasePendingAdmissions(disturbed(memory, refused), PLACE, lambda *_: None).open(2)
    assert listed(memory) == []


@pytest.mark.parametrize("asleep_after", ["get", "replace"])
def test_who_has_lost_the_right_to_drive_while_it_opened_writes_no_more(
    memory: MemoryCluster, asleep_after: str
) -> None:
    """As a process does that is stopped while a request is under way, and goes on once its Lease has run out."""
    uid = memory.create(TFJOBS, "default", tfjob("a"))["metadata"]["uid"]
    opened(memory).record_pending({uid: JobRef(TFJOBS, "default", "a")})
    right, verbs = [True], list[str]()

    class Wire:
        def __getattr__(self, verb: str) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                verbs.append(verb)
                answer = getattr(memory, verb)(*args, **kwargs)
                right[0] = right[0] and verb != asleep_after
                return answer

            return call

    slow = LeasePendingAdmissions(Wire(), PLACE, lambda *_: None, may_act=lambda: right[0])  # type: ignore[arg-type]
    with pytest.raises(LeadershipLost):
        slow.open(2)
    assert verbs == {"get": ["get"], "replace": ["get", "replace"]}[asleep_after]


def test_another_job_of_the_same_name_is_not_touched(memory: MemoryCluster) -> None:
    opened(memory).record_pending(refs("a"))
    before = memory.create(TFJOBS, "default", tfjob("a"))
    opened(memory)
    assert memory.get(TFJOBS, "default", "a") == before


@pytest.mark.parametrize(
    "text",
    ["[[1]]", "no JSON", '[["tfjobs", "default", "", "u"]]', '[["tfjobs", "", "a", "u"]]', '[["pods","a","b","c"]]'],
)
def test_a_list_that_nobody_can_read_names_nobody(memory: MemoryCluster, text: str) -> None:
    body = {
        "metadata": {"namespace": "default", "name": PLACE.name, "annotations": {ADMITTING_ANNOTATION: text}},
        "spec": {},
    }
    memory.create(LEASES, "default", body)
    opened(memory).record_pending(refs("a"))
    assert listed(memory) == ["a"]


def test_after_a_write_without_an_answer_it_is_opened_again(memory: MemoryCluster) -> None:
    wire = Sleepy(memory)

    def lost() -> None:
        raise ClusterError("no answer")

    intents = LeasePendingAdmissions(wire, PLACE, lambda *_: None)  # type: ignore[arg-type]
    intents.open(1)
    wire.sleep = (0, lost)
    with pytest.raises(ClusterError):
        intents.record_pending(refs("a"))
    with pytest.raises(LeadershipLost):
        intents.record_pending(refs("a"))
    assert intents.open(1)
    assert intents.record_pending(refs("a")) == {"uid-a"}


@pytest.mark.parametrize("error", [Rejected("a webhook says no"), Conflict("once more"), Unavailable("no answer")])
def test_while_a_listed_job_cannot_be_touched_nothing_is_given_away(memory: MemoryCluster, error: ClusterError) -> None:
    """It is there, and its verdict may still arrive."""
    stored = memory.create(TFJOBS, "default", tfjob("a"))
    opened(memory).record_pending({stored["metadata"]["uid"]: JobRef(TFJOBS, "default", "a")})
    refused = [True]

    def refuse(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("patch", TFJOBS) and refused[0]:
            raise error

    touched: list[str] = []
    second = LeasePendingAdmissions(disturbed(memory, refuse), PLACE, lambda ref, _: touched.append(ref.name))
    for _ in range(2):
        with pytest.raises(type(error)):
            second.open(1)
        with pytest.raises(LeadershipLost):
            second.record_pending(refs("b"))
        assert listed(memory) == ["a"], "the next leader has to see to it as well"
    refused[0] = False
    assert second.open(1)
    assert (touched, listed(memory)) == (["a"], [])
    assert second.record_pending(refs("b")) == {"uid-b"}


def test_a_leader_that_failed_to_open_the_list_goes_on_where_it_stopped(memory: MemoryCluster) -> None:
    jobs = {memory.create(TFJOBS, "default", tfjob(name))["metadata"]["uid"]: name for name in ("a", "b", "c")}
    given = {uid: JobRef(TFJOBS, "default", name) for uid, name in jobs.items()}
    opened(memory).record_pending(given)
    answers = [True, False, True, False, True, True, True, True]  # whether the server answers the next touch

    def refuse(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("patch", TFJOBS) and not answers.pop(0):
            raise Unavailable("no answer")

    touched: list[str] = []
    second = LeasePendingAdmissions(disturbed(memory, refuse), PLACE, lambda ref, _: touched.append(ref.name))
    for _ in range(2):
        with pytest.raises(Unavailable):
            second.open(1)
    assert second.open(2)
    assert sorted(touched) == ["a", "b", "c"], "each once"
    second.record_pending(given)
    assert second.open(3)
    assert len(touched) == 6, "they were given a place anew"


def test_a_leader_that_failed_to_open_the_list_begins_again_after_another(memory: MemoryCluster) -> None:
    uids = [memory.create(TFJOBS, "default", tfjob(name))["metadata"]["uid"] for name in ("a", "b")]
    given = {uid: JobRef(TFJOBS, "default", name) for uid, name in zip(uids, ("a", "b"), strict=True)}
    opened(memory).record_pending(given)
    left = [1]

    def refuse(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("patch", TFJOBS):
            left[0] -= 1
            if left[0] == -1:
                raise Unavailable("no answer")

    touched: list[str] = []
    late = LeasePendingAdmissions(disturbed(memory, refuse), PLACE, lambda ref, _: touched.append(ref.name))
    with pytest.raises(Unavailable):
        late.open(1)
    assert len(touched) == 1
    opened(memory).record_pending(given)
    assert late.open(1)
    assert len(touched) == 3


def test_who_was_shut_out_while_it_opened_gives_nothing_away(memory: MemoryCluster) -> None:
    """Between its two writes another one has opened the list, too, and may have decided since."""
    stored = memory.create(TFJOBS, "default", tfjob("a"))
    opened(memory).record_pending({stored["metadata"]["uid"]: JobRef(TFJOBS, "default", "a")})

    def before(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("patch", TFJOBS):
            opened(memory).record_pending(refs("b"))

    late = LeasePendingAdmissions(disturbed(memory, before), PLACE, lambda *_: None)
    with pytest.raises(LeadershipLost):
        late.open(1)
    with pytest.raises(LeadershipLost):
        late.record_pending(refs("c"))
    assert listed(memory) == ["b"]


def test_what_is_given_again_is_not_settled_any_more(memory: MemoryCluster) -> None:
    intents = opened(memory)
    intents.record_pending(refs("a", "b"))
    intents.settle(["uid-a", "uid-b"])
    intents.record_pending(refs("a"))
    assert intents.declared() == {"uid-a"}
    intents.record_pending(refs("c"))
    assert listed(memory) == ["a", "c"]


def test_one_that_has_no_list_yet_makes_one(memory: MemoryCluster) -> None:
    """Another one may have made it meanwhile."""

    def before(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("create", LEASES):
            opened(memory).record_pending(refs("a"))

    late = LeasePendingAdmissions(disturbed(memory, before), PLACE, lambda *_: None)
    assert late.open(1)
    assert listed(memory) == []
    assert late.record_pending(refs("b")) == {"uid-b"}


def test_what_was_declared_under_an_earlier_right_is_not_listed_under_the_next(memory: MemoryCluster) -> None:
    intents = opened(memory)
    intents.record_pending(refs("a"))
    assert intents.open(2)
    assert intents.declared() == frozenset()
    intents.record_pending(refs("b"))
    assert listed(memory) == ["b"]


def test_one_that_cannot_be_opened_anew_is_not_open_under_the_old_right(memory: MemoryCluster) -> None:
    away = [False]

    def refuse(*_: Any, **__: Any) -> None:
        if away[0]:
            raise Unavailable("no answer")

    intents = LeasePendingAdmissions(disturbed(memory, refuse), PLACE, lambda *_: None)
    intents.open(1)
    away[0] = True
    with pytest.raises(Unavailable):
        intents.open(2)
    away[0] = False
    with pytest.raises(LeadershipLost):
        intents.record_pending(refs("a"))
