"""What is counted can be read, and is what the document says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tf_dist.driver.metrics import PrometheusRecorder
from tf_dist.driver.recorder import Recorder

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
_ROW = re.compile(r"^\| `(tf_dist_\w+)` \| (\w+) \|(.*?)\| (.+) \|$", re.MULTILINE)
# One call of every method, with what it may be told.
CALLS = {
    "queue_depth": (3,),
    "reconciled": (0.02,),
    "acted": ("Create", "ok"),
    "admitted": (12.0,),
    "restarted": ("PodFailed",),
    "disrupted": ("EvictionByEvictionAPI",),
    "called": ("get", "pods", 200, 0.004),
    "watch_restarted": ("pods", "gone"),
    "heartbeat": (True,),
    "driving": (5,),
    "leading": (True,),
}


@pytest.fixture
def recorder() -> PrometheusRecorder:
    recorder = PrometheusRecorder(clock=lambda: 1_800_000_000.0)
    for method, arguments in CALLS.items():
        getattr(recorder, method)(*arguments)
    return recorder


def samples(recorder: PrometheusRecorder) -> dict[str, float]:
    """Everything that is exposed, by its text: ``name{label="value"}``."""
    found = {}
    for line in recorder.exposition().decode().splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


def test_every_method_is_counted_and_no_other() -> None:
    methods = {name for name, value in vars(Recorder).items() if inspect.isfunction(value)}
    assert methods == set(CALLS)
    assert methods <= {name for name, value in vars(PrometheusRecorder).items() if inspect.isfunction(value)}


def test_what_happens_can_be_read(recorder: PrometheusRecorder) -> None:
    recorder.acted("Create", "Conflict")
    recorder.acted("Create", "ok")
    recorder.heartbeat(False)
    recorder.leading(False)
    found = samples(recorder)
    expected = {
        "tf_dist_queue_depth": 3,
        "tf_dist_jobs": 5,
        "tf_dist_leading": 0,
        "tf_dist_reconcile_seconds_count": 1,
        "tf_dist_reconcile_seconds_sum": 0.02,
        'tf_dist_actions_total{kind="Create",result="ok"}': 2,
        'tf_dist_actions_total{kind="Create",result="Conflict"}': 1,
        "tf_dist_admission_wait_seconds_count": 1,
        'tf_dist_restarts_total{cause="PodFailed"}': 1,
        'tf_dist_disruptions_total{reason="EvictionByEvictionAPI"}': 1,
        'tf_dist_api_calls_total{code="200",resource="pods",verb="get"}': 1,
        'tf_dist_api_call_seconds_count{verb="get"}': 1,
        'tf_dist_watch_restarts_total{cause="gone",resource="pods"}': 1,
        'tf_dist_heartbeats_total{result="ok"}': 1,
        'tf_dist_heartbeats_total{result="failed"}': 1,
        "tf_dist_last_heartbeat_timestamp_seconds": 1_800_000_000.0,
    }
    assert {name: found.get(name) for name in expected} == expected


def test_the_document_s_table_is_what_is_exposed(recorder: PrometheusRecorder) -> None:
    rows = {name: (kind, labels, text) for name, kind, labels, text in _ROW.findall(DOCUMENT.read_text())}
    exposed = {}
    for family in text_string_to_metric_families(recorder.exposition().decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if name.startswith("tf_dist_") and not name.endswith("_created"):
            labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
            exposed[name] = (family.type, labels, family.documentation)
    written = {
        name: (kind, sorted(re.findall(r"`(\w+)`", labels)), text) for name, (kind, labels, text) in rows.items()
    }
    assert written == exposed


def test_two_may_live_in_one_process(recorder: PrometheusRecorder) -> None:
    other = PrometheusRecorder()
    other.driving(1)
    assert samples(other)["tf_dist_jobs"] == 1
    assert samples(recorder)["tf_dist_jobs"] == 5
