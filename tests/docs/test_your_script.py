"""The page about users' scripts works unchanged: its scripts train, and its commands run in order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Program, tf_dist
from tests.examples.test_digits import trains
from tf_dist.core.diagnostics.log_rules import LOG_RULES

__all__ = ["tf_dist"]

PAGE = (Path(__file__).parents[2] / "docs" / "your-script.md").read_text()
FILES = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', PAGE, flags=re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"^\$ tf-dist (.*)$", PAGE, flags=re.MULTILINE)


def commands(script: str) -> Iterator[list[str]]:
    """The local runs of a script, in the order of the page."""
    return (words for words in map(shlex.split, COMMANDS) if words[:2] == ["run", script])


@pytest.fixture
def reader(tf_dist: Program) -> Program:
    """A folder with the files of the page."""
    for name, text in FILES.items():
        tf_dist.write(name, text)
    return tf_dist


def run(reader: Program, words: list[str]) -> tuple[str, dict[str, str]]:
    """The output of a successful command, and the facts of its summary."""
    found = reader(*words)
    assert found.returncode == 0, found.stdout + found.stderr
    summary = found.stdout.rpartition(": Succeeded\n")[2]
    return found.stdout, dict(re.findall(r"^  (\w+): +(.+)$", summary, flags=re.MULTILINE))


class TestTraining:
    pytestmark = trains

    def test_loop_trains_and_continues_from_checkpoint(self, reader: Program) -> None:
        first, second = commands("loop.py")
        _, facts = run(reader, first)
        assert (facts["step"], facts["checkpoint"]) == ("100", "model/ckpt-5")
        assert {"loss", "mae"} <= facts.keys()
        text, facts = run(reader, second)
        assert "| starts at step 100\n" in text
        assert facts["step"] == "200"

    @pytest.mark.parametrize(("script", "step"), [("fit.py", "60"), ("mirrored.py", "48")])
    def test_model_fit_reports_epochs(self, reader: Program, script: str, step: str) -> None:
        if find_spec("tf_keras") is None:
            pytest.skip("tf_keras is missing: pip install --no-deps tf_keras")
        (words,) = commands(script)
        _, facts = run(reader, words)
        assert (facts["epoch"], facts["step"]) == ("3", step)
        assert float(facts["loss"]) < 1

    @pytest.mark.parametrize("script", ["fit.py", "mirrored.py"])
    def test_keras_3_failure_suggests_legacy_keras(self, reader: Program, script: str) -> None:
        (words,) = commands(script)
        found = reader(*words[: words.index("--env")])
        assert found.returncode == 1
        assert "what to do: " in found.stdout
        assert "TF_USE_LEGACY_KERAS=1" in found.stdout.rpartition("what to do: ")[2]

    def test_callback_reports_metrics(self, reader: Program) -> None:
        (words,) = commands("reported.py")
        _, facts = run(reader, words)
        assert (facts["epoch"], "loss" in facts) == ("3", True)

    def test_tensorflow_1_session_trains(self, reader: Program) -> None:
        for number, words in enumerate(commands("v1.py")):
            _, facts = run(reader, words)
            assert "loss" in facts
            assert (reader.folder / ("v1", "other", "pretended")[number]).is_dir()


@pytest.mark.parametrize("file", ["claim.yaml", "restricted.yaml"])
def test_job_file_accepts_changes_of_page(reader: Program, file: str) -> None:
    (words,) = (one for one in map(shlex.split, COMMANDS) if one[0] == "init")
    assert reader(*words).returncode == 0
    job: dict[str, Any] = yaml.safe_load((reader.folder / "job.yaml").read_text())
    added = yaml.safe_load(FILES[file])["spec"]
    for replica in job["spec"]["tfReplicaSpecs"].values():
        spec = replica["template"]["spec"]
        assert {"name": "MODEL_DIR", "value": "/data/model"} in spec["containers"][0]["env"]
        replica["template"]["spec"] = {**spec, **added, "containers": [spec["containers"][0] | added["containers"][0]]}
    found = reader("validate", "--strict", reader.write("changed.yaml", job))
    assert found.returncode == 0, found.stdout + found.stderr


def test_submitted_job_has_roles(reader: Program) -> None:
    (words,) = (one for one in map(shlex.split, COMMANDS) if one[0] == "submit")
    found = reader(*words[: words.index("--context")], "--dry-run")
    assert found.returncode == 0, found.stderr
    job = next(one for one in yaml.safe_load_all(found.stdout) if one["kind"] == "TFJob")
    assert {name: one["replicas"] for name, one in job["spec"]["tfReplicaSpecs"].items()} == {
        "Chief": 1,
        "PS": 1,
        "Worker": 2,
    }


def test_log_advice_names_page() -> None:
    assert any("docs/your-script.md" in rule.resolution for rule in LOG_RULES)
