"""Options that become annotations of the job."""

from __future__ import annotations

import pytest

from tf_dist.cli.options import parse_seconds, policy_changes
from tf_dist.core.model.overrides import apply_overrides, parse_overrides
from tf_dist.errors import InvalidJob


def test_policies_become_annotations() -> None:
    changes = policy_changes(['{"workers": 4}', '{"queue_name": "spot"}'], "fallback", None, "10m")
    document = apply_overrides({"metadata": {"name": "a"}}, parse_overrides(strings=changes))
    assert document["metadata"]["annotations"] == {
        "tf-dist.dev/fallback": '[{"workers": 4}, {"queue_name": "spot"}]',
        "tf-dist.dev/on-eviction": "fallback",
        "tf-dist.dev/admission-timeout": "10m",
    }
    assert policy_changes((), None, None, "") == []
    assert policy_changes(['[{"workers": 4}, {"queue_name": "spot"}]'], "fallback", None, "10m") == changes


@pytest.mark.parametrize(
    ("fallback", "timeout", "told"),
    [
        (["{"], "10m", "--fallback: '{' cannot be read as JSON"),
        (["jobs/spot.json"], "10m", "--fallback: 'jobs/spot.json' cannot be read as JSON: .*pass a file as"),
        (["{workers: 4}"], "10m", r"--fallback: '\{workers: 4\}' cannot be read as JSON: .*\(write --fallback '"),
        (["[]"], "10m", "^--fallback: the list is empty"),
        (["[4]"], "10m", r"^--fallback\[0\]: .* changes nothing"),
        (['{"wrokers": 4}'], "10m", r"^--fallback\[0\]\.wrokers: .*did you mean workers"),
        (
            ['{"workers": 4}'],
            "",
            '^--fallback: nothing sets when .* --admission-timeout as well, or --on-eviction="fallback"',
        ),
        (['{"workers": 4}'], "soon", "--admission-timeout: 'soon' is not a time"),
        ([], "10m", "--admission-timeout: sets the time before a fallback, but there is no fallback"),
    ],
)
def test_invalid_policies_are_rejected(fallback: list[str], timeout: str, told: str) -> None:
    with pytest.raises(InvalidJob, match=told):
        policy_changes(fallback, None, None, timeout)


@pytest.mark.parametrize("text", ["soon", "{{inputs.parameters.timeout}}"])
def test_invalid_time_is_rejected(text: str) -> None:
    with pytest.raises(InvalidJob, match=r"--timeout: .* is not a time"):
        parse_seconds(text)


def test_policy_errors_name_option() -> None:
    with pytest.raises(InvalidJob, match=r"^--on-eviction: there is no fallback \(add --fallback, "):
        policy_changes((), "fallback", None, "")
