"""Reservations beside their definition: one after the other, each as early as can be, holding back what it must and no
more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from math import inf
from random import Random

import pytest

from tests.core.gang.gangs import GPU, bound, gang, member, node, queue, running, workers
from tf_dist.core.gang.books import Books, Entry
from tf_dist.core.gang.holding import Pods
from tf_dist.core.gang.reserve import Reservation, kept, reserve, taken

NOW = 1000.0
QUEUES = ("a", "b", "free")
Free = dict[str, int]


@dataclass
class Case:
    """A cluster of GPUs: what is free on each node, who gives what back when, and what each queue has left.

    ``gives``: in the order in which they give back: when (``NOW`` for those on their way out), the queue, the GPUs by
    node.
    """

    books: Books
    free: Free
    gives: list[tuple[float, str, Free]]
    left: dict[str, int]
    waiting: list[Entry]


def drawn(dice: Random) -> Case:
    """Up to 4 nodes that are nearly full, and up to 4 gangs that wait, of pods of one size each."""
    books = Books()
    books.see_nodes()
    free = {f"n{at}": dice.randint(0, 4) for at in range(dice.randint(1, 4))}
    quotas = {"a": dice.randint(2, 10), "b": dice.randint(2, 10)}
    books.put_queues([*(queue(name, gpu=gpus) for name, gpus in quotas.items()), queue("free")])
    left = {**quotas, "free": 10**6}
    gives: list[tuple[float, str, Free]] = []
    told, used = [], dict.fromkeys(free, 0)
    runs = []
    for number in range(dice.randint(1, 6)):
        on = {name: dice.randint(1, 2) for name in dice.sample(sorted(free), dice.randint(1, min(2, len(free))))}
        size = dice.choice([1, 1, 2])
        gpus = {name: count * size for name, count in on.items()}
        where = dice.choice(QUEUES)
        one = running(f"r{number}", on, gpu=size, queue=where, estimate=float(NOW + 10 * (number + 1)))
        if dice.random() < 0.5:
            one = bound(one)  # its pods are on their nodes, else they are still to come
            for name, count in gpus.items():
                used[name] += count
        kind = dice.choice(["runs", "runs", "runs", "told", "stopped"])
        if kind == "stopped":
            if not one.bound:
                for name, count in gpus.items():
                    used[name] += count
            one = replace(bound(one), place=None)
        runs.append((one, kind))
        left[where] -= sum(gpus.values())
        gives.append((float(NOW + 10 * (number + 1)) if kind == "runs" else NOW, where, gpus))
        told += [one.uid] if kind == "told" else []
    for name, there in free.items():
        held = sum(gpus.get(name, 0) for _, _, gpus in gives)
        books.put_node(node(name, gpu=there + held, used={"gpu": used[name]}))
    for one, _ in runs:
        entry = books.put(one)
        if one.uid in told:
            books.tell(entry, entry.held.staying, entry.held.staying_quota)
    books.ends.advance(NOW)
    waiting = [
        books.put(gang(f"w{at}", workers(dice.randint(1, 5), gpu=dice.choice([1, 1, 2])), queue=dice.choice(QUEUES)))
        for at in range(dice.randint(2, 4))
    ]
    assert books.grants is not None
    books.grants.settle()
    return Case(books, free, sorted(gives, key=lambda one: one[0]), left, waiting)


def wants(entry: Entry) -> tuple[int, int]:
    """How many pods, and the GPUs of each."""
    [part] = entry.gang.members
    return part.count, int(part.requests[GPU])


def gpus(pods: Sequence[Pods]) -> Free:
    """By node."""
    found: Free = {}
    for one in pods:
        [(_, value)] = one.shape.requests
        found[one.node] = found.get(one.node, 0) + value * one.number
    return found


def less(free: Mapping[str, int], *taken: Mapping[str, int]) -> Free:
    return {name: count - sum(one.get(name, 0) for one in taken) for name, count in free.items()}


def more(free: Mapping[str, int], given: Sequence[Mapping[str, int]]) -> Free:
    return {name: count + sum(one.get(name, 0) for one in given) for name, count in free.items()}


def need(entry: Entry) -> int:
    count, size = wants(entry)
    return count * size


def earliest(case: Case, entry: Entry, earlier: Sequence[Reservation]) -> tuple[float, int] | None:
    """When a gang fits beside the earlier ones, and how many have given back by then; None: never."""
    count, size = wants(entry)
    leaving = sum(at == NOW for at, _, _ in case.gives)
    for gone in range(leaving, len(case.gives) + 1):
        given = case.gives[:gone]
        room = less(more(case.free, [one for _, _, one in given]), *(gpus(one.pods) for one in earlier))
        quota = case.left[entry.queue] + sum(sum(one.values()) for _, queue, one in given if queue == entry.queue)
        quota -= sum(need(one.entry) for one in earlier if one.entry.queue == entry.queue)
        if sum(max(0, there) // size for there in room.values()) >= count and quota >= count * size:
            return (given[-1][0] if gone > leaving else NOW), gone
    return None


def held(case: Case, made: Sequence[Reservation], gone: int) -> Free:
    """What the last of them has to keep of every node: what is not vacated, or counted on by those before it.

    In whole pods, and no more than it needs there.
    """
    *before, last = made
    _, size = wants(last.entry)
    vacated = {name: sum(one.get(name, 0) for _, _, one in case.gives[:gone]) for name in case.free}
    counted = [less(gpus(one.pods), gpus(one.hold)) for one in before]
    found = {}
    for name, wanted in gpus(last.pods).items():
        spare = vacated[name] - sum(one.get(name, 0) for one in counted)
        if wanted > (covered := max(0, spare) // size * size):
            found[name] = wanted - covered
    return found


def held_quota(case: Case, made: Sequence[Reservation], gone: int) -> int:
    *before, last = made
    spare = sum(sum(one.values()) for _, queue, one in case.gives[:gone] if queue == last.entry.queue)
    for one in before:
        if one.entry.queue == last.entry.queue:
            spare -= need(one.entry) - int(one.hold_quota.get(GPU, 0))
    return max(0, need(last.entry) - max(0, spare))


def test_one_after_the_other_they_agree_with_the_definition() -> None:
    later = several = 0
    for seed in range(200):
        case = drawn(Random(seed))
        made: list[Reservation] = []
        before = state(case)
        for entry in case.waiting:
            expected = earliest(case, entry, made)
            found = reserve(case.books, entry, entry.ask.full if entry.ask else (), NOW, made)
            assert (found is None) == (expected is None), seed
            assert state(case) == before, "a look leaves no trace"
            if found is None or expected is None:
                continue
            made.append(found)
            start, gone = expected
            assert found.start == start
            room = less(more(case.free, [one for _, _, one in case.gives[:gone]]), *(gpus(one.pods) for one in made))
            assert all(room[name] >= 0 for name in gpus(found.pods))
            assert sum(one.number for one in found.pods) == wants(entry)[0]
            assert gpus(found.hold) == held(case, made, gone)
            assert found.hold_quota.get(GPU, 0) == held_quota(case, made, gone)
            later += start > NOW
        several += len(made) > 1
        check_views(case, made)
    assert later > 100
    assert several > 100


def state(case: Case) -> object:
    grants, quotas = case.books.grants, case.books.quotas
    assert grants is not None
    return {name: grants.room.free(name)[GPU] for name in case.free}, [quotas.used(name) for name in QUEUES]


def check_views(case: Case, made: Sequence[Reservation]) -> None:
    """``taken`` is the room when all have what they reserved, ``kept`` that less what is held back for them."""
    before = state(case)
    for view, parts in ((taken, [gpus(one.pods) for one in made]), (kept, [gpus(one.hold) for one in made])):
        with view(case.books, made):
            rooms, used = state(case)  # type: ignore[misc]
            free, had = before  # type: ignore[misc]
            assert rooms == {name: free[name] - sum(part.get(name, 0) for part in parts) for name in free}
            for name, now, then in zip(QUEUES, used, had, strict=True):
                mine = [one for one in made if one.entry.queue == name]
                added = sum(need(one.entry) if view is taken else one.hold_quota.get(GPU, 0) for one in mine)
                assert now.get(GPU, 0) == then.get(GPU, 0) + added
        assert state(case) == before


def test_without_the_ends_of_others_only_what_is_leaving_counts() -> None:
    possible = 0
    for seed in range(150):
        case = drawn(Random(seed))
        entry = case.waiting[0]
        found = reserve(case.books, entry, entry.ask.full if entry.ask else (), NOW, ended=False)
        expected = earliest(replace(case, gives=[one for one in case.gives if one[0] == NOW]), entry, ())
        assert (found is None) == (expected is None)
        possible += found is not None
    assert 15 < possible < 135


def test_who_ends_when_nobody_knows_ends_last_and_has_no_time() -> None:
    books = Books()
    books.put_node(node("n0", gpu=4))
    books.put(running("known", {"n0": 2}, estimate=NOW + 50))
    books.put(running("unknown", {"n0": 2}))
    books.ends.advance(NOW)
    small, large = books.put(gang("small", workers(2))), books.put(gang("large", workers(4)))
    first = reserve(books, small, (2,), NOW)
    second = reserve(books, large, (4,), NOW)
    assert first is not None
    assert second is not None
    assert (first.start, second.start) == (NOW + 50, inf)
    assert (first.after and first.after.uid, second.after and second.after.uid) == ("known", "unknown")


@pytest.mark.parametrize(("vacated", "kept_back"), [(0, 5), (1, 4), (2, 3), (3, 2), (4, 1), (5, 0)])
def test_members_of_two_sizes_on_one_node_do_not_count_on_the_same_room(vacated: int, kept_back: int) -> None:
    """One pod of 3 GPUs and two of 1 on a node where so many become free: every GPU covers one pod at most."""
    books = Books()
    books.put_node(node("n0", gpu=5))
    books.put(running("a", {"n0": vacated}, estimate=NOW + 50) if vacated else gang("none", member("w", 0)))
    books.ends.advance(NOW)
    both = books.put(gang("both", member("w", 1, gpu=3), member("x", 2, gpu=1)))
    found = reserve(books, both, (1, 2), NOW)
    assert found is not None
    assert sum(gpus(found.pods).values()) == 5
    held_back = sum(gpus(found.hold).values())
    # A pod is covered as a whole or not at all: of 3 GPUs that two becoming free do not cover, all are kept.
    assert kept_back <= held_back <= kept_back + 2
    assert found.hold_quota.get(GPU, Decimal(0)) == kept_back
