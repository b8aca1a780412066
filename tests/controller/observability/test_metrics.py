"""The exposed metrics, which must match the reference in docs."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.controller.harness import tfjob
from tf_dist.cluster.api import TFJOBS
from tf_dist.controller.job_index import JobIndex
from tf_dist.controller.observability.health import stuck_threads
from tf_dist.controller.observability.metrics_interface import (
    OTHER_QUEUES,
    ControllerStats,
    InformerStats,
    JobMetricsKey,
    Metric,
    QueueStats,
    WorkQueueStats,
    gangs_by_queue,
)
from tf_dist.controller.observability.prometheus_metrics import PrometheusRecorder
from tf_dist.controller.settings import JobRef
from tf_dist.core.model import names
from tf_dist.core.model.usage import Spent, Usage

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
_ROW = re.compile(r"^\| `(tf_dist_\w+)` \| (\w+) \|(.*?)\| (.+) \|$", re.MULTILINE)
READINGS = ControllerStats(
    WorkQueueStats(depth=3, adds=20, retries=2, running={"default/a": 1.5, "default/b": 0.5}, workers=16),
    (InformerStats("pods", 7.0, 1.0, False, 2),),
    {"Running": 5},
    {"team": QueueStats(4, 1)},
)


@pytest.fixture
def recorder() -> PrometheusRecorder:
    return busy_recorder()


def busy_recorder() -> PrometheusRecorder:
    """A recorder in which every metric has been recorded once."""
    recorder = PrometheusRecorder(clock=lambda: 1_800_000_000.0)
    recorder.attach(lambda: READINGS)
    recorder.record(Metric.WORKQUEUE_QUEUE_DURATION_SECONDS, value=0.3)
    recorder.record(Metric.WORKQUEUE_WORK_DURATION_SECONDS, value=0.04)
    recorder.record(Metric.RECONCILE_ERRORS, "Conflict")
    recorder.record(Metric.RECONCILE_SECONDS, value=0.02)
    recorder.record(Metric.ACTIONS, "Create", "ok")
    recorder.record(Metric.ADMISSION_WAIT_SECONDS, value=12.0)
    recorder.record(Metric.UNDECIDABLE_GANGS, value=2)
    recorder.record(Metric.RESTARTS, "PodFailed")
    recorder.record(Metric.DISRUPTIONS, "EvictionByEvictionAPI")
    recorder.record(Metric.WATCH_RESTARTS, "pods", "gone")
    recorder.used("team", Usage(gpus=Spent(held=10)), Usage(gpus=Spent(held=40, lost=20), replicas=Spent(trained=5)))
    recorder.called("get", "pods", 200, 0.004)
    recorder.heartbeat(True)
    recorder.leading("a/one", True)
    return recorder


def samples(recorder: PrometheusRecorder) -> dict[str, float]:
    """All exposed samples by their text, such as ``name{label="value"}``."""
    found = {}
    for line in recorder.exposition().decode().splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


def test_every_recorded_metric_has_series(recorder: PrometheusRecorder) -> None:
    counted = {family.name: family.samples for family in recorder.registry.collect()}
    assert all(counted[f"tf_dist_{metric.name.lower()}"] for metric in Metric)


def test_queues_beyond_limit_share_series(recorder: PrometheusRecorder) -> None:
    for number in range(1_000):
        recorder.used(f"queue-{number}", Usage(), Usage(gpus=Spent(held=1)))
    family = "tf_dist_gpu_seconds_total{"
    found = {name: value for name, value in samples(recorder).items() if name.startswith(family)}
    assert len(found) <= 202
    assert sum(found.values()) == 30 + 20 + 1_000


def test_recorded_values_are_exposed(recorder: PrometheusRecorder) -> None:
    recorder.record(Metric.ACTIONS, "Create", "Conflict")
    recorder.record(Metric.ACTIONS, "Create", "ok")
    assert samples(recorder)["tf_dist_last_heartbeat_timestamp_seconds"] == 1_800_000_000.0
    recorder.heartbeat(False)
    recorder.leading("a/one", False)
    found = samples(recorder)
    expected = {
        "tf_dist_workqueue_depth": 3,
        "tf_dist_workqueue_adds_total": 20,
        "tf_dist_workqueue_retries_total": 2,
        "tf_dist_workqueue_queue_duration_seconds_sum": 0.3,
        "tf_dist_workqueue_work_duration_seconds_sum": 0.04,
        "tf_dist_workqueue_unfinished_work_seconds": 2.0,
        "tf_dist_workqueue_longest_running_processor_seconds": 1.5,
        "tf_dist_active_workers": 2,
        "tf_dist_max_concurrent_reconciles": 16,
        'tf_dist_reconcile_errors_total{reason="Conflict"}': 1,
        'tf_dist_jobs{phase="Running"}': 5,
        'tf_dist_pending_gangs{queue="team"}': 4,
        'tf_dist_admitted_gangs{queue="team"}': 1,
        'tf_dist_informer_age_seconds{resource="pods"}': 7.0,
        'tf_dist_informer_lists_total{resource="pods"}': 2,
        'tf_dist_gpu_seconds_total{queue="team",use="held"}': 30,
        'tf_dist_gpu_seconds_total{queue="team",use="lost"}': 20,
        'tf_dist_replica_seconds_total{queue="team",use="trained"}': 5,
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


def test_leading_is_one_while_process_holds_any_lease(recorder: PrometheusRecorder) -> None:
    recorder.leading("b/one", True)
    recorder.leading("b/one", False)
    assert samples(recorder)["tf_dist_leading"] == 1
    recorder.leading("a/one", False)
    assert samples(recorder)["tf_dist_leading"] == 0


def test_metrics_reference_matches_exposed_metrics(recorder: PrometheusRecorder) -> None:
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


def test_recorders_in_one_process_are_independent(recorder: PrometheusRecorder) -> None:
    other = PrometheusRecorder()
    other.attach(lambda: ControllerStats(WorkQueueStats(), jobs={"Running": 1}))
    assert samples(other)['tf_dist_jobs{phase="Running"}'] == 1
    assert samples(recorder)['tf_dist_jobs{phase="Running"}'] == 5


def test_stats_of_controllers_in_one_process_are_summed(recorder: PrometheusRecorder) -> None:
    more = ControllerStats(
        WorkQueueStats(depth=1, running={"a/b": 9.0}, workers=4),
        (InformerStats("pods", 30.0, 30.0, False, 1),),
        {"Running": 1, "Pending": 2},
        {"team": QueueStats(1, 0)},
    )
    recorder.attach(lambda: more)
    found = samples(recorder)
    expected = {
        "tf_dist_workqueue_depth": 4,
        "tf_dist_active_workers": 3,
        "tf_dist_max_concurrent_reconciles": 20,
        "tf_dist_workqueue_longest_running_processor_seconds": 9.0,
        'tf_dist_jobs{phase="Pending"}': 2,
        'tf_dist_jobs{phase="Running"}': 6,
        'tf_dist_pending_gangs{queue="team"}': 5,
        'tf_dist_informer_age_seconds{resource="pods"}': 30.0,
    }
    assert {name: found.get(name) for name in expected} == expected


def test_metric_names_follow_prometheus_conventions(recorder: PrometheusRecorder) -> None:
    """The rules of ``promtool check metrics``."""
    families = list(text_string_to_metric_families(recorder.exposition().decode()))
    ours = [one for one in families if one.name.startswith("tf_dist_") and not one.name.endswith("_created")]
    assert {"counter", "gauge", "histogram"} <= {one.type for one in ours}
    for family in ours:
        assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", family.name)
        assert family.documentation.endswith(".")
        assert not re.search(r"_(total|count|sum|bucket)$", family.name), "the client adds these"
        assert not re.search(r"_(milliseconds|ms|minutes|hours|kilobytes|percent)(_|$)", family.name), "base units"
        if family.type == "histogram":
            assert family.name.endswith("_seconds")
        for sample in family.samples:
            if family.type == "counter":
                assert sample.name.endswith(("_total", "_created"))
            assert not {"job", "instance", "pod", "namespace"} & set(sample.labels), "Prometheus adds these"


def test_nonexistent_queues_share_one_series() -> None:
    """Users can write any queue name into the labels of jobs, so the number of names is unlimited."""
    jobs = [metrics_key(tfjob(f"j-{number}"), queue=f"made-up-{number}") for number in range(50)]
    jobs += [metrics_key(tfjob("real"), queue="team"), metrics_key(tfjob("none"))]
    found = gangs_by_queue(Counter(jobs), ["team", "empty"])
    assert {name: one.pending for name, one in found.items()} == {"team": 1, "empty": 0, OTHER_QUEUES: 50, "": 1}
    assert len(gangs_by_queue({}, [f"q-{number}" for number in range(10_000)])) <= 200


def test_jobs_without_queue_count_in_default_queue() -> None:
    assert gangs_by_queue({metrics_key(tfjob("none")): 2}, ["default"])["default"] == QueueStats(pending=2)


def metrics_key(document: dict[str, Any], queue: str = "") -> JobMetricsKey:
    labels = {names.QUEUE: queue} if queue else {}
    metadata = {**document["metadata"], "uid": document["metadata"]["name"], "resourceVersion": "1", "labels": labels}
    stored = {**document, "metadata": metadata}
    return JobIndex().read(JobRef.of(TFJOBS, stored), stored).metrics_key


def test_stuck_threads_are_named() -> None:
    pods = InformerStats("pods", 5000.0, 59.0, False, 1)
    idle = ControllerStats(WorkQueueStats(running={"a/b": 59.0}), (pods,), loop_age=299.0)
    assert stuck_threads(idle, worker=60, informer=60) == [], "that the server says nothing is not the process's fault"
    busy = ControllerStats(
        WorkQueueStats(running={"a/b": 61.0}),
        (InformerStats("pods", 0.0, 61.0, False, 1), InformerStats("nodes", 0.0, 0.0, True, 1)),
        loop_age=301.0,
    )
    assert stuck_threads(busy, worker=60, informer=60) == [
        "the admission loop has completed no cycle for 301 s",
        "a worker has been busy with a/b for 61 s",
        "the informer of pods has made no progress for 61 s",
        "the informer of nodes has ended",
    ]
