"""The example notebook is valid, has no outputs, and all its cells run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples/training.ipynb"


def test_all_cells_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert names["best"] == "0.5"
    printed = capsys.readouterr().out
    assert "succeeded {'step': 5.0, 'loss': 0.5905} model/worker-0.ckpt" in printed
    assert "worker-0 1 no data" in printed


def test_notebook_is_stored_without_outputs() -> None:
    """nbformat 4.5: cells have unique ids, and no outputs or counts, which would change with every run."""
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in notebook["cells"]:
        code = {"outputs", "execution_count"} if cell["cell_type"] == "code" else set()
        assert cell.keys() == {"cell_type", "id", "metadata", "source"} | code
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
