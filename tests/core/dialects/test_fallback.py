"""The annotations of a pipeline's policies: their meaning in every dialect, and the errors of invalid values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.core.dialects.documents import Doc, changed, errors, paths, v1, v1alpha1, volcano, warnings
from tf_dist.core.dialects import parse, policy_annotations, read
from tf_dist.core.model.job import DisruptionPolicy, Role
from tf_dist.core.model.timestamps import parse_duration, seconds_of
from tf_dist.errors import InvalidJob

ALL = pytest.mark.parametrize("document", [v1(), v1alpha1(), volcano()], ids=["v1", "v1alpha1", "volcano"])
AT = 'metadata.annotations["tf-dist.dev/{}"]'


def said(document: Doc, fallback: Any = None, **more: str) -> Doc:
    notes = {f"tf-dist.dev/{key.replace('_', '-')}": value for key, value in more.items()}
    if fallback is not None:
        notes["tf-dist.dev/fallback"] = fallback if isinstance(fallback, str) else json.dumps(fallback)
    return changed(document, "metadata.annotations", notes)


@ALL
def test_each_fallback_is_job_with_its_changes(document: Doc) -> None:
    given = [
        {"workers": 1},
        {"queue_name": "spot", "node_selector": {"pool": "spot"}, "tolerations": [{"key": "spot"}]},
        {"resources": {"nvidia.com/gpu": 4, "memory": "3Gi"}, "image": "cpu:1"},
    ]
    document = said(document, given, admission_timeout="10m", on_eviction="fallback")
    assert warnings(document) == []
    for job in (parse(document).job, read(document)):
        assert job.scheduling.admission_timeout == 600
        assert job.run_policy.on_eviction is DisruptionPolicy.FALLBACK
        assert job.run_policy.on_preemption is DisruptionPolicy.RESTART
        smaller, spot, other = job.fallbacks
        assert [spec.replicas for spec in smaller.replica_specs if spec.role is Role.WORKER] == [1]
        assert smaller.scheduling.min_available <= len(smaller.replicas)
        assert spot.scheduling.queue == "spot"
        assert len(spot.replicas) == len(job.replicas)
        for spec in spot.replica_specs:
            if spec.template:
                assert spec.template["spec"]["nodeSelector"] == {"pool": "spot"}
                assert spec.template["spec"]["tolerations"] == [{"key": "spot"}]
        worker = next(spec for spec in other.replica_specs if spec.role is Role.WORKER)
        container = next(one for one in worker.template["spec"]["containers"] if one["name"] == worker.container)
        assert container["image"] == "cpu:1"
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "4"
        assert "3Gi" in (container["resources"].get("requests") or {}).values()
        assert job.fallbacks[0].key == job.key


@pytest.mark.parametrize(
    ("fallback", "expected"),
    [
        ("[", [("fallback", "cannot be read as JSON")]),
        ("[]", [("fallback", "the list is empty")]),
        ('{"workers": 2}', [("fallback", "a mapping is not a list of fallbacks")]),
        ([{}], [("fallback[0]", "changes nothing")]),
        ([{"workers": 1}] * 9, [("fallback", "no more than 8")]),
        (
            [{"workers": -1, "wrokers": 2}, {"queue_name": ""}, {"tolerations": {}}, {"node_selector": {"a": 1}}],
            [
                ("fallback[0].workers", "the number -1 is not a number of workers"),
                ("fallback[0].wrokers", "is not a setting that a fallback can change"),
                ("fallback[1].queue_name", "is not the name of a queue"),
                ("fallback[2].tolerations", "is not a list of tolerations"),
                ("fallback[3].node_selector", "is not a selection of nodes"),
            ],
        ),
        ([{"workers": 1}, {"resources": {"cpu": "much"}}], [("fallback[1]", "with it, ")]),
        ([{"resources": {"cpu": True}}], [("fallback[0].resources", "is not a list of resources")]),
    ],
)
def test_errors_name_position_in_list_of_fallbacks(fallback: Any, expected: list[tuple[str, str]]) -> None:
    found = errors(said(v1(), fallback, admission_timeout="10m"))
    places = [(AT.format("fallback") + where.removeprefix("fallback"), what) for where, what in expected]
    assert [one.path for one in found][: len(places)] == [where for where, _ in places]
    assert all(what in one.message for (_, what), one in zip(places, found, strict=False))
    assert all(one.hint for one in found)


def test_other_mistakes_are_reported_at_same_time() -> None:
    document = changed(said(v1(), '[{"wrokers": 2}]', on_eviction="fal"), "spec.runPolicy.backoffLimit", "x")
    found = paths(errors(document))
    assert "spec.runPolicy.backoffLimit" in found
    assert f"{AT.format('fallback')}[0].wrokers" in found


@pytest.mark.parametrize(
    ("notes", "path", "hint"),
    [
        ({"on_eviction": "retry"}, "on-eviction", "known: restart, requeue, fail, fallback"),
        ({"on_preemption": "fallback"}, "on-preemption", "add tf-dist.dev/fallback"),
        ({"admission_timeout": "soon"}, "admission-timeout", "such as 90s"),
        ({"fallback": '[{"workers": 1}]', "gang_scheduler": "kueue"}, "fallback", "remove it"),
    ],
)
def test_refuses_invalid_policies(notes: dict[str, str], path: str, hint: str) -> None:
    [found] = errors(said(v1(), **notes))
    assert found.path == AT.format(path)
    assert hint in found.hint


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("10m", "10m"),
        ("2d", "172800s"),
        (" 10m ", "600s"),
        ("1.5", "1.5s"),
        (0.5, "0.5s"),
        (1_234_567, "1234567s"),
        (100, "100s"),
    ],
)
def test_admission_timeout_of_argument_is_valid_annotation(given: Any, written: str) -> None:
    assert policy_annotations(admission_timeout=given, has_fallbacks=True) == {"tf-dist.dev/admission-timeout": written}
    assert parse_duration(written) == seconds_of(given)


@pytest.mark.parametrize("given", ["soon", "", -1, True, float("inf"), float("nan"), [1]])
def test_refuses_admission_timeouts_that_are_not_durations(given: Any) -> None:
    with pytest.raises(InvalidJob, match=r"admission_timeout: .* is not a duration"):
        policy_annotations(admission_timeout=given, has_fallbacks=True)


def test_warns_of_fallbacks_that_are_never_tried() -> None:
    assert paths(warnings(said(v1(), [{"workers": 1}]))) == [AT.format("fallback")]
    assert paths(warnings(said(v1(), admission_timeout="10m"))) == [AT.format("admission-timeout")]


def test_arguments_become_annotations() -> None:
    assert policy_annotations(admission_timeout=600) == {}
    assert policy_annotations(
        fallback=[{"workers": 4}], on_eviction="fallback", on_preemption="requeue", admission_timeout=600
    ) == {
        "tf-dist.dev/fallback": '[{"workers": 4}]',
        "tf-dist.dev/on-eviction": "fallback",
        "tf-dist.dev/on-preemption": "requeue",
        "tf-dist.dev/admission-timeout": "600s",
    }
    with pytest.raises(InvalidJob) as caught:
        policy_annotations(fallback=[{"wrokers": 4}], on_eviction="retry")
    assert [one.path for one in caught.value.problems] == ["fallback[0].wrokers", "on_eviction", "fallback"]
    templated = [{"workers": "{{ params.n }}"}]
    known_later = {"open_": lambda value: isinstance(value, str) and "{{" in value}
    assert policy_annotations(fallback=templated, admission_timeout="10m", **known_later)
