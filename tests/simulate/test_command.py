"""The command ``tf-dist simulate``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tf_dist.cli.main import run

SMALL = ("--jobs", "30", "--nodes", "2", "--gpus", "4")


def simulate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["simulate", *arguments])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_table_has_row_for_each_policy(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = simulate(capsys, *SMALL, "--policy", "fifo", "--policy", "dragon", "--policy", "fifo")
    about, blank, titles, *rows = out.splitlines()
    assert (code, err, blank) == (0, "", "")
    assert about == "dragon: 30 jobs on 2 × (4 GPUs and 64 cpu)"
    assert titles.split()[:2] == ["POLICY", "ELAPSED"]
    assert [row.split()[0] for row in rows] == ["fifo", "dragon"]
    assert all(len(row.split()) == len(titles.split()) for row in rows)


def test_json_output_is_same_for_same_seed(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*SMALL, "--trace", "philly", "--policy", "easy", "--seeds", "2", "-o", "json")
    code, out, _ = simulate(capsys, *arguments)
    found = json.loads(out)
    assert code == 0
    assert found["cluster"] == {"nodes": 2, "gpus": 4, "cpu": 48}
    assert (found["policies"]["easy"]["jobs"], found["policies"]["easy"]["stuck"]) == (60, 0)
    assert simulate(capsys, *arguments)[1] == out
    assert simulate(capsys, *arguments, "--seed", "7")[1] != out


@pytest.mark.parametrize(
    "arguments",
    [("--trace", "dragon", *SMALL), ("--trace", "storm", "--nodes", "700"), ("--trace", "kueue", "--jobs", "60")],
)
def test_html_report_is_well_formed_and_self_contained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    page = tmp_path / "out.html"
    code, _, _ = simulate(capsys, *arguments, "--policy", "default", "--policy", "easy", "--html", str(page))
    text = page.read_text()
    root = ElementTree.fromstring(text.removeprefix("<!doctype html>\n"))
    svg = "{http://www.w3.org/2000/svg}"
    pictures = root.findall(f".//{svg}svg")
    assert code == 0
    assert [picture.get("aria-label") for picture in pictures] == ["default", "easy"]
    assert all(picture.findall(f".//{svg}title") or picture.findall(f".//{svg}g/{svg}rect") for picture in pictures)
    assert len(root.findall(".//tbody/tr")) == 2
    assert not re.search(r"(src|href)=|@import|url\(", text)


def test_trace_is_read_from_csv_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("name,submit,duration,workers\n<a&b>,0,100,4\nc,0,100,8\n")
    page = tmp_path / "out.html"
    code, out, _ = simulate(capsys, "--trace", str(path), "--nodes", "1", "--policy", "fifo", "--html", str(page))
    assert (code, out.splitlines()[0]) == (0, "mine: 2 jobs on 1 × (8 GPUs and 128 cpu)")
    assert "&lt;a&amp;b&gt;" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--policy", "eazy"), "did you mean easy?"),
        (("--policy", "x"), "there are: default, default+timeout, gang"),
        (("--trace", "philadelphia"), "there are: philly, helios, dragon, kueue, storm"),
        (("--trace", "none.csv"), "none.csv: cannot be read: No such file or directory"),
        (("--nodes", "0"), "--nodes"),
        (("--load", "0"), "--load"),
        (("--jobs", "3", "--html", "/nowhere/x.html", "--policy", "fifo"), "/nowhere/x.html cannot be written"),
    ],
)
def test_invalid_options_are_explained(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    code, out, err = simulate(capsys, *arguments)
    assert (code, out) == (2, "")
    assert told in err
    assert "Traceback" not in err


def test_faithful_simulation_gives_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*SMALL, "--policy", "ours", "-o", "json")
    code, out, _ = simulate(capsys, *arguments)
    assert (code, *simulate(capsys, *arguments, "--faithful")[:2]) == (0, 0, out)


def test_faithful_requires_policy_ours(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = simulate(capsys, *SMALL, "--policy", "fifo", "--faithful")
    assert code == 2
    assert "only under the policy ours" in err
    assert "add --policy ours" in err


def test_checkpoints_limit_loss_by_preemption(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """8 GPUs train for 100 s and are preempted. The checkpoints of a job override the option."""
    path = tmp_path / "jobs.yaml"
    arguments = ("--trace", str(path), "--nodes", "1", "--policy", "ours", "-o", "json")

    def lost_hours(own: str, *more: str) -> float:
        path.write_text(
            f"- {{submit: 0, duration: 1000, workers: 8{own}}}\n"
            "- {submit: 100, duration: 1000, workers: 8, priority: 1}\n"
        )
        code, out, _ = simulate(capsys, *arguments, *more)
        assert code == 0
        return float(json.loads(out)["policies"]["ours"]["lost_hours"])

    seconds = 8 / 3600
    assert lost_hours("") == pytest.approx(100 * seconds, abs=1e-3)
    assert lost_hours("", "--checkpoint", "30") == pytest.approx(10 * seconds, abs=1e-3)
    assert lost_hours(", checkpoint: 80", "--checkpoint", "30") == pytest.approx(20 * seconds, abs=1e-3)


@pytest.mark.parametrize("more", [(), ("--faithful",)])
def test_queues_that_a_file_names_have_no_quota(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, more: tuple[str, ...]
) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("submit,duration,workers,queue\n0,100,8,red\n0,100,8,blue\n10,100,8,\n")
    code, out, _ = simulate(capsys, "--trace", str(path), "--nodes", "1", "--policy", "ours", "-o", "json", *more)
    assert (code, json.loads(out)["policies"]["ours"]["stuck"]) == (0, 0)
