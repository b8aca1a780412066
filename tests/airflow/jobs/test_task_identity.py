"""Job names and labels that a later try can derive again."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_dist.airflow.jobs.task_identity import TaskInstanceKey, label_value

KEY = TaskInstanceKey(deployment="prod", dag_id="d", run_id="scheduled__2026-11-22T00:00:00+00:00", task_id="train")
LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


def test_each_task_instance_has_unique_label() -> None:
    others = [
        replace(KEY, deployment="staging"),
        replace(KEY, dag_id="e"),
        replace(KEY, run_id="r"),
        replace(KEY, task_id="t"),
        replace(KEY, map_index=0),
        replace(KEY, map_index=1),
    ]
    assert len({one.label for one in [KEY, *others]}) == 7
    assert KEY.label == replace(KEY).label


def test_job_name_is_stable_within_try_and_differs_between_tries() -> None:
    assert KEY.job_name("digits", 1) == KEY.job_name("digits", 1) != KEY.job_name("digits", 2)


def test_label_and_name_are_stable_across_releases() -> None:
    """A retry after an upgrade adopts the job of the previous try."""
    assert KEY.label == "mbdrh2bs63noh18gw8xd"
    assert KEY.job_name("digits", 1) == "digits-a1dnsx2y"


@pytest.mark.parametrize("base", ["digits", "Digits_Train", "7-days", "x" * 80, "…", "a" * 30 + "-b", ""])
def test_job_name_is_valid(base: str) -> None:
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])", KEY.job_name(base, 1))


def test_valid_base_name_is_unchanged() -> None:
    assert KEY.job_name("v-1", 1).rpartition("-")[0] == "v-1"


@given(st.text(max_size=100))
def test_any_text_becomes_valid_label(text: str) -> None:
    assert LABEL.fullmatch(label_value(text))


def test_label_keeps_valid_text_and_distinguishes_invalid_texts() -> None:
    assert label_value("train.digits_1") == "train.digits_1"
    assert label_value("a+b") != label_value("a:b")
    assert label_value("x" * 70) != label_value("x" * 71)


def test_labels_contain_airflow_ids() -> None:
    labels = replace(KEY, map_index=2).labels(3)
    assert (labels["dag_id"], labels["task_id"], labels["try_number"], labels["map_index"]) == ("d", "train", "3", "2")
    assert "map_index" not in KEY.labels(1)
