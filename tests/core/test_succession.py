"""A task that is tried again."""

from __future__ import annotations

from tf_dist.core.succession import Answer, Candidate, Succession, choose

NONE = Succession(Answer.CREATE)


def test_the_first_try_makes_a_job() -> None:
    assert choose([]) == NONE


def test_a_living_job_is_adopted_the_newest_of_several_and_one_stays() -> None:
    old, new = Candidate(uid="old", created=1.0), Candidate(uid="new", created=2.0)
    assert choose([old]) == Succession(Answer.ADOPT, "old")
    assert choose([old, new]) == Succession(Answer.ADOPT, "new", surplus=("old",))


def test_a_job_that_is_on_its_way_out_is_none() -> None:
    assert choose([Candidate(uid="a", created=1.0, doomed=True)]) == NONE
    ended = Candidate(uid="a", created=1.0, doomed=True, done=True, succeeded=True)
    assert choose([ended]) == NONE


def test_a_result_is_taken_once() -> None:
    job = Candidate(uid="a", created=1.0, done=True, succeeded=True)
    assert choose([job]) == Succession(Answer.HARVEST, "a")
    assert choose([Candidate(uid="a", created=1.0, done=True, succeeded=True, consumed=True)]) == NONE


def test_a_job_that_failed_is_what_is_tried_again() -> None:
    assert choose([Candidate(uid="a", created=1.0, done=True)]) == NONE


def test_a_living_job_counts_more_than_an_older_result() -> None:
    done = Candidate(uid="done", created=2.0, done=True, succeeded=True)
    assert choose([done, Candidate(uid="alive", created=1.0)]).uid == "alive"


def test_who_is_not_durable_begins_anew_and_leaves_nothing_alive() -> None:
    done = Candidate(uid="done", created=2.0, done=True, succeeded=True)
    found = choose([done, Candidate(uid="alive", created=1.0)], durable=False)
    assert found == Succession(Answer.CREATE, surplus=("alive",))
