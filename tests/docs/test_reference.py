"""The reference pages have everything that the code has, and nothing that it has no more."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest

from docs.generator import source
from docs.generator.blocks import BLOCKS, filled, pages
from docs.generator.markdown import argument_table
from docs.generator.source import Argument, Undocumented
from tf_dist.core.model.reasons import CONDITIONS, Reason

ROOT = Path(__file__).parents[2]
CODE = sorted((ROOT / "tf_dist").rglob("*.py"))
LAYERS = ("Data flows one way", "Folders of the core have an order")


def test_reference_pages_are_as_code_has_it() -> None:
    """``make reference`` writes them anew."""
    stale = [path.name for path in pages() if path.read_text() != filled(path.read_text())]
    assert not stale, "run make reference"


def test_each_block_is_on_one_page() -> None:
    named = [
        name for path in (ROOT / "docs").rglob("*.md") for name in re.findall(r"generate: (\S+)", path.read_text())
    ]
    assert sorted(named) == sorted(BLOCKS)


def test_every_key_of_labels_and_annotations_is_there() -> None:
    page = BLOCKS["annotations"]()
    used = {key for path in CODE for key in re.findall(r"[\"'`/(]?(tf-dist\.dev/[a-z][a-z-]+)", path.read_text())}
    used = {key for key in used if not re.fullmatch(r"tf-dist\.dev/v\d\w*", key)}
    assert used - set(re.findall(r"`(tf-dist\.dev/[\w-]+)`", page)) <= {"tf-dist.dev/v"}


def test_the_page_of_reasons_has_every_row_of_the_registry() -> None:
    page = BLOCKS["reasons"]()
    words = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert sorted(words) == sorted([*CONDITIONS, *Reason])


def test_the_conditions_are_those_that_the_code_writes() -> None:
    written = (ROOT / "tf_dist/core/reconciler/status_writer.py").read_text()
    assert [one for one in CONDITIONS if f'"{one}"' not in written] == []


def test_an_argument_without_a_description_is_an_error_that_names_it() -> None:
    given = [Argument("job", "str", None), Argument("workers", "int", "1")]
    with pytest.raises(Undocumented, match=r"Operator: .* says nothing about workers"):
        argument_table("Operator", given, {"job": "what to run"})
    with pytest.raises(Undocumented, match=r"Operator: .* describes wrokers"):
        argument_table("Operator", given, {"job": "what", "workers": "how many", "wrokers": "how many"})


def test_descriptions_are_read_in_both_forms() -> None:
    assert source.described("What.\n\n:param a: one\n    two\n:param b_c: three") == {"a": "one two", "b_c": "three"}
    assert source.described("What.\n\n``a``, ``b``: both. ``c``: the\nthird (``a``).") == {
        "a": "both.",
        "b": "both.",
        "c": "the third (``a``).",
    }


def test_every_argument_of_the_operators_is_there() -> None:
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


def test_every_argument_of_a_step_is_there() -> None:
    pytest.importorskip("hera", reason="Hera is missing: pip install '.[argo]'")
    from tf_dist.argo import TFJobStep

    table = BLOCKS["argo"]().partition("## TFJobStep\n")[2].partition("\n## ")[0]
    own = [name for name in TFJobStep.__dataclass_fields__ if name in vars(TFJobStep)["__annotations__"]]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == sorted(own)


def test_the_drawing_of_the_house_has_every_layer() -> None:
    """``python -m docs.generator.pictures house`` draws it anew."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [one["layers"] for one in contracts if one["name"] in LAYERS]
    assert len(layers) == len(LAYERS)
    drawn = (ROOT / "docs/pictures/house.svg").read_text()
    names = [name for floors in layers for floor in floors for name in floor.split(" | ")]
    assert [name for name in names if not re.search(rf"\b{name}\b", drawn)] == []
