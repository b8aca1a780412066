"""The reference pages contain everything that exists in the code, and nothing else."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from docs.generator.blocks import BLOCKS, filled, pages
from tf_dist.core.model.reasons import CONDITIONS, Reason

ROOT = Path(__file__).parents[2]
CODE = sorted((ROOT / "tf_dist").rglob("*.py"))


def test_reference_pages_are_current() -> None:
    """``make reference`` updates them."""
    stale = [path.name for path in pages() if path.read_text() != filled(path.read_text())]
    assert not stale, "run make reference"


def test_each_block_is_on_one_page() -> None:
    named = [
        name for path in (ROOT / "docs").rglob("*.md") for name in re.findall(r"<!-- generate: (\S+)", path.read_text())
    ]
    assert sorted(named) == sorted(BLOCKS)


def test_all_labels_and_annotations_are_listed() -> None:
    page = BLOCKS["annotations"]()
    used = {key for path in CODE for key in re.findall(r"[\"'`/(]?(tf-dist\.dev/[a-z][a-z-]+)", path.read_text())}
    used = {key for key in used if not re.fullmatch(r"tf-dist\.dev/v\d\w*", key)}
    assert used - set(re.findall(r"`(tf-dist\.dev/[\w-]+)`", page)) <= {"tf-dist.dev/v"}


def test_all_reasons_are_listed() -> None:
    page = BLOCKS["reasons"]()
    words = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert sorted(words) == sorted([*CONDITIONS, *Reason])


def test_all_operator_arguments_are_listed() -> None:
    pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")
    from tf_dist import airflow

    page = BLOCKS["airflow"]()
    kinds = [name for name in airflow.__all__ if name.endswith(("Operator", "Sensor"))]
    assert len(kinds) > 2
    for name in kinds:
        table = page.partition(f"## {name}\n")[2].partition("\n## ")[0]
        taken = [
            key
            for key, one in inspect.signature(getattr(airflow, name).__init__).parameters.items()
            if key != "self" and one.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        assert set(taken) <= set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)), name


def test_all_step_arguments_are_listed() -> None:
    pytest.importorskip("hera", reason="Hera is missing: pip install '.[argo]'")
    from tf_dist.argo import TFJobStep

    table = BLOCKS["argo"]().partition("## TFJobStep\n")[2].partition("\n## ")[0]
    own = [name for name in TFJobStep.__dataclass_fields__ if name in vars(TFJobStep)["__annotations__"]]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == sorted(own)
