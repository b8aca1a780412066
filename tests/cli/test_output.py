"""The output on a terminal."""

from __future__ import annotations

import json
from io import StringIO

import pytest
import yaml

from tests.cli.conftest import Program
from tests.cli.processes import on_terminal
from tests.core.builders import START, pod, v1_job
from tf_dist.cli import output
from tf_dist.cli.findings import show_findings
from tf_dist.cli.run_output import LiveView
from tf_dist.client.monitor import JobSnapshot
from tf_dist.core.diagnostics.diagnose import Diagnosis
from tf_dist.core.model.reasons import Category, Level
from tf_dist.core.model.status import Admission, Phase, Status


def test_run_shows_live_table_below_lines(tf_dist: Program) -> None:
    words = ("replica", "state", "restarts", "accuracy", "last line", "0.2000", "0s ago", "\x1b[36mworker-0 |")
    # The job runs until the table has shown all words, but at most for a minute.
    script = "for i in $(seq 300); do test -e shown && exit 0; echo step=2 loss=0.2 accuracy=0.92; sleep 0.2; done"

    def seen(text: bytes) -> None:
        if all(word.encode() in text for word in words):
            (tf_dist.folder / "shown").touch()

    code, text = on_terminal(tf_dist, "run", tf_dist.write("job.yaml", tf_dist.job(script, workers=2)), seen=seen)
    assert code == 0
    for word in words:
        assert word in text
    assert "\r\n  restarts:    0" in text
    assert "\x1b[?25h" in text, "the cursor is back"
    assert tf_dist.leftovers() == []


@pytest.mark.parametrize("how", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {}])
def test_output_is_plain_on_request(tf_dist: Program, how: dict[str, str]) -> None:
    plain = [] if how else ["--plain"]
    code, text = on_terminal(tf_dist, "run", tf_dist.write("job.yaml", tf_dist.job("echo hello")), *plain, **how)
    assert code == 0
    assert "worker-0 | hello\r\n" in text
    assert "\x1b" not in text


def test_terminal_control_sequences_of_job_are_removed(tf_dist: Program) -> None:
    script = r"printf '\033]0;title\007\033[2J\033[31mred\033[0m\n[bold]markup[/bold]\n'"
    _, text = on_terminal(tf_dist, "run", tf_dist.write("job.yaml", tf_dist.job(script)))
    assert "\x1b[2J" not in text
    assert "\x1b]0;" not in text
    assert "\x1b[31mred" in text
    assert "[bold]markup[/bold]" in text


def test_live_view_shows_messages_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    message = "failed [rpc error: code = 5] on [/v2/x] \x1b[2J\\[b]"
    state = {"waiting": {"reason": "ErrImagePull", "message": message}}
    job = v1_job()
    waiting = pod(job, "worker-0", {"phase": "Pending", "containerStatuses": [{"name": "tensorflow", "state": state}]})
    snapshot = JobSnapshot(job).with_objects(Status(admission=Admission(START), phase=Phase.PENDING), [waiting])
    terminal = StringIO()
    monkeypatch.setattr("sys.stdout", terminal)
    view = LiveView(job, error=False)
    view.say(message)
    view._console.print(view._table(snapshot, 0.0))
    view.close()
    shown = terminal.getvalue()
    assert shown.count("failed [rpc error: code = 5] on [/v2/x] \\[b]") == 2
    assert "\x1b" not in shown


def test_control_sequences_of_findings_are_removed() -> None:
    found = Diagnosis(Level.ERROR, Category.FAILURE, "worker-0 failed: \x1b[2J\x9b1A", "ValueError: \x1b]0;title\x07no")
    written: list[str] = []
    show_findings([found], written.append)
    assert written == ["error: worker-0 failed: 1A", "    ValueError: no"]


def test_problems_are_colored(tf_dist: Program) -> None:
    code, text = on_terminal(tf_dist, "validate", tf_dist.write("job.yaml", tf_dist.job(name="Bad")))
    assert code == 2
    assert "\x1b[31;1merror\x1b[0m: job.yaml:1:" in text


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize("depth", [470, 980, 5000])
def test_deep_object_does_not_hide_others(form: str, depth: int, capsys: pytest.CaptureFixture[str]) -> None:
    deep: object = "end"
    for level in range(depth):
        deep = [deep] if level % 2 else {"a": deep}
    output.data(form, {"kind": "List", "items": [{"spec": deep}, {"spec": {"kept": True}}]})
    shown, warned = capsys.readouterr()
    items = yaml.safe_load(shown)["items"]
    assert items[1] == {"spec": {"kept": True}}
    assert "(nested more than 100 deep)" in shown
    assert "warning: items[0].spec" in warned


@pytest.mark.parametrize("value", ["\ud800", "a\udfff\nb", {"\udc80": 1}])
def test_lone_surrogates_are_written(value: object, capsys: pytest.CaptureFixture[str]) -> None:
    output.data("json", {"value": value})
    assert json.loads(capsys.readouterr().out) == {"value": value}
    output.data("yaml", {"value": value})
    assert "\ufffd" in str(yaml.safe_load(capsys.readouterr().out))
