"""Trace files: their contents, and reports of all mistakes with their positions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tf_dist.cli.main import run
from tf_dist.errors import InvalidJob
from tf_dist.simulate.scenario import SimJob
from tf_dist.simulate.trace_files import load
from tf_dist.simulate.traces import TraceOptions


def a_file(folder: Path, text: str, name: str = "jobs.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def problems(path: Path, wish: TraceOptions | None = None) -> list[str]:
    with pytest.raises(InvalidJob) as told:
        load(path, wish or TraceOptions())
    return [str(problem) for problem in told.value.problems]


def test_csv_and_yaml_give_same_jobs(tmp_path: Path) -> None:
    rows = [
        {"name": "b", "submit": 5.5, "duration": 60, "workers": 4, "least": 2, "most": 8, "ps": 1, "queue": "red"},
        {"name": "a", "submit": 0, "duration": 600, "estimate": 700, "priority": -1},
    ]
    csv = "name, submit, duration, workers, least, most, ps, queue, estimate, priority\n"
    csv += "b,5.5,60,4,2,8,1,red,,\na,0,600,,,,,,700,-1\n"
    found = load(a_file(tmp_path, csv), TraceOptions())
    assert found.jobs == load(a_file(tmp_path, json.dumps(rows), "list.yaml"), TraceOptions()).jobs
    assert found.jobs == load(a_file(tmp_path, json.dumps({"jobs": rows}), "map.yml"), TraceOptions()).jobs
    assert found.jobs == (
        SimJob(name="a", submit=0, duration=600, estimate=700, priority=-1),
        SimJob(name="b", submit=5.5, duration=60, workers=4, least=2, most=8, ps=1, queue="red"),
    )
    assert (found.cluster.nodes, found.cluster.gpus, found.name) == (8, 8, "jobs")


def test_least_and_most_default_to_number_of_workers(tmp_path: Path) -> None:
    (job,) = load(a_file(tmp_path, "submit,duration,workers\n0,1,4\n"), TraceOptions()).jobs
    assert (job.least, job.workers, job.most) == (4, 4, 4)


def test_submit_times_are_stretched_to_load(tmp_path: Path) -> None:
    path = a_file(tmp_path, "submit,duration,workers\n0,80,8\n10,80,8\n")
    assert [job.submit for job in load(path, TraceOptions(load=0.5)).jobs] == [0, 2 * 8 * 80 / (64 * 0.5)]


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    text = "submit,duration,worker,gpus\n0,60,,many\n,1,2,1\n1,nan,,-1\n2,inf,,1,5\n"
    assert problems(a_file(tmp_path, text)) == [
        "jobs.csv line 2: gpus is 'many', which is not an integer",
        "jobs.csv line 3: has an unknown field worker (did you mean workers?)",
        "jobs.csv line 3: has no submit (in seconds)",
        "jobs.csv line 4: duration is nan, which is too small",
        "jobs.csv line 4: gpus is -1, which is too small",
        "jobs.csv line 5: duration is inf, which is too large",
        "jobs.csv line 5: has more fields than the first line names",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("- {submit: 0, duration: 1, workers: 2.5}", "jobs[0]: workers is 2.5, which is not an integer"),
        ("- {submit: 0, duration: 1, workers: true}", "jobs[0]: workers is True, which is not an integer"),
        ("- {submit: 0, duration: 1, workers: 0}", "jobs[0]: workers is 0, which is too small"),
        ("- {submit: 0, duration: 1, workers: 2, least: 3}", "least 3 ≤ workers 2 ≤ most 2 does not hold"),
        ("- {submit: 0, duration: 1, workers: 65}", "does not fit: it needs 65 × (1 GPU, 4 cpu)"),
        ("- {submit: 0, duration: 1, annotations: {a: b}}", "jobs[0]: has an unknown field annotations"),
        ("- {submit: 0, duration: 1, submit: 2}", "submit twice"),
        ("- 3", "is not a list of jobs"),
        ("a: [", "is not YAML"),
        ("[" * 5000, "is not YAML"),
        ("[]", "holds no job"),
    ],
)
def test_invalid_yaml_is_reported(tmp_path: Path, text: str, told: str) -> None:
    (found,) = problems(a_file(tmp_path, text, "x.yaml"))
    assert told in found


_BOMB = "".join(f"b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 9)}]\n" for n in range(1, 10))
_ODD = [
    "~",
    "[]",
    "{a: 1}",
    "*b9",
    "!!binary x",
    "!!set {a}",
    '"\\n"',
    '"\\ud800"',
    '"\\0"',
    f"0x{'f' * 5000}",
    "x" * 5000,
]
_ODD += ["true", "1.5", "-1", ".nan", ".inf", "1.0e+11", "''", "2024-01-01", "1:30"]


@pytest.mark.parametrize(
    "field", ["name", "submit", "workers", "estimate", "priority", "annotations", "x" * 5000, f"0x{'f' * 5000}"]
)
def test_odd_value_is_reported_in_few_words_or_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str
) -> None:
    for value in _ODD:
        row = {"submit": "0", "duration": "10", field: value}
        bomb = _BOMB if value == "*b9" else ""
        text = f"b0: &b0 [x]\n{bomb}jobs: [{{{', '.join(f'{key}: {one}' for key, one in row.items())}}}]"
        path = a_file(tmp_path, text, "x.yaml")
        code = run(["simulate", "--trace", str(path), "--policy=ours", "--faithful", f"--html={tmp_path / 'x.html'}"])
        told = capsys.readouterr().err
        assert code == (2 if told else 0), (value, told)
        assert len(told) < 500
        assert "a defect" not in told


def test_file_of_a_spreadsheet_is_read(tmp_path: Path) -> None:
    (job,) = load(a_file(tmp_path, "\ufeffsubmit,duration\n0,1\n"), TraceOptions()).jobs
    assert job.duration == 1


def test_column_that_appears_twice_is_reported(tmp_path: Path) -> None:
    assert problems(a_file(tmp_path, "submit,duration,submit\n0,1,2\n")) == [
        "jobs.csv line 1: names submit twice (keep one)"
    ]


def test_missing_and_binary_files_are_reported(tmp_path: Path) -> None:
    assert "No such file" in problems(tmp_path / "none.csv")[0]
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in problems(tmp_path / "x.csv")[0]


def test_only_first_of_many_mistakes_are_reported(tmp_path: Path) -> None:
    found = problems(a_file(tmp_path, "submit,duration\n" + "0,x\n" * 50))
    assert (len(found), found[-1]) == (21, "jobs.csv: has 30 more problems")
