"""Metrics in log lines: what counts as one, what does not, and whose word counts for the job."""

from __future__ import annotations

import math

import pytest

from tf_dist.core.diagnostics.metrics_parser import Progress, combine_progress


@pytest.mark.parametrize(
    ("line", "metrics"),
    [
        ("step=120 loss=0.3121 accuracy=0.97", {"step": 120, "loss": 0.3121, "accuracy": 0.97}),
        ("loss = 1e-3, acc=.5;x=-2", {"loss": 0.001, "acc": 0.5, "x": -2}),
        ("Validation-accuracy=0.9 train|loss=+3.", {"Validation-accuracy": 0.9, "train|loss": 3}),
        ("\x1b[1mloss\x1b[0m=\x1b[31m0.5\x1b[0m", {"loss": 0.5}),
        ("loss=0.5.", {"loss": 0.5}),
        ("accuracy=95%", {"accuracy": 95}),
        ("2027-01-15T08:00:00Z loss=0.5", {"loss": 0.5}),
        ("address=10.0.0.1:2222", {}),
        ("port=2222:80", {}),
        ("took=3s", {}),
        ("version=1.2.3", {}),
        ("name=worker", {}),
        ("a.b=4", {}),
        ("=4", {}),
        ("step 4", {}),
        ("", {}),
    ],
)
def test_reads_name_value_pairs(line: str, metrics: dict[str, float]) -> None:
    assert Progress().after(line).metrics == metrics


def test_a_loss_that_diverged_is_news() -> None:
    found = Progress().after("loss=nan norm=inf").metrics
    assert math.isnan(found["loss"])
    assert math.isinf(found["norm"])


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("step=5 checkpoint=/tmp/m/ckpt-5", "/tmp/m/ckpt-5"),
        ('checkpoint="/tmp/my model/5", done', "/tmp/my model/5"),
        ("checkpoint=gs://bucket/a=b/5", "gs://bucket/a=b/5"),
        ("checkpoint=7", "7"),
        ("checkpoint=None", ""),
        ("last_checkpoint=/x", ""),
    ],
)
def test_reads_the_checkpoint(line: str, path: str) -> None:
    assert Progress().after(line).checkpoint == path


def test_the_latest_value_counts_and_others_stay() -> None:
    progress = Progress().after("step=1 loss=0.9").after("step=2 checkpoint=/a").after("checkpoint=/b")
    assert progress == Progress({"step": 2, "loss": 0.9}, "/b")


def test_a_line_without_news_changes_nothing() -> None:
    progress = Progress({"step": 1})
    assert progress.after("hello = world") is progress


def test_the_leaders_word_counts_first() -> None:
    parts = [Progress({"accuracy": 0.9}), Progress({"accuracy": 0.5, "loss": 1.0}, "/w1"), Progress({}, "/w2")]
    assert combine_progress(parts) == Progress({"accuracy": 0.9, "loss": 1.0}, "/w1")


def test_a_line_of_a_megabyte_costs_little() -> None:
    assert Progress().after("a" * (1 << 20) + "=1") == Progress()
    assert Progress().after("=" * (1 << 20)) == Progress()
