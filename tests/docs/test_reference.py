"""The reference pages have everything that the code has, and nothing that it has no more."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.generator import source
from docs.generator.blocks import BLOCKS, MARK
from docs.generator.markdown import argument_table
from docs.generator.reasons import CONDITIONS, EVENTS, REASONS
from docs.generator.source import Argument, Undocumented
from tf_dist.core.diagnostics.diagnose import ENDS
from tf_dist.core.model.assignment import PendingReason
from tf_dist.core.model.job import Event
from tf_dist.core.model.pods import HOLDING_REASONS

ROOT = Path(__file__).parents[2]
CODE = sorted((ROOT / "tf_dist").rglob("*.py"))
LAYERS = ("Data flows one way", "Folders of the core have an order")
DECIDING = [path for path in CODE if path.is_relative_to(ROOT / "tf_dist/core") or "controller" in path.parts]


@pytest.mark.parametrize("name", BLOCKS)
def test_every_block_can_be_made_and_stands_on_one_page(name: str) -> None:
    assert "|" in BLOCKS[name]()
    pages = [path for path in (ROOT / "docs").rglob("*.md") if name in MARK.findall(path.read_text())]
    assert len(pages) == 1


def test_no_page_names_a_block_that_there_is_not() -> None:
    named = [
        name for path in (ROOT / "docs").rglob("*.md") for name in re.findall(r"generate: (\S+)", path.read_text())
    ]
    assert set(named) == set(BLOCKS)


def test_every_key_of_labels_and_annotations_is_there() -> None:
    page = BLOCKS["annotations"]()
    used = {key for path in CODE for key in re.findall(r"[\"'`/(]?(tf-dist\.dev/[a-z][a-z-]+)", path.read_text())}
    used = {key for key in used if not re.fullmatch(r"tf-dist\.dev/v\d\w*", key)}
    assert used - set(re.findall(r"`(tf-dist\.dev/[\w-]+)`", page)) <= {"tf-dist.dev/v"}


def _constants() -> dict[str, str]:
    """Texts of the core's and the controller's constants, by name."""
    found = {}
    for path in DECIDING:
        for one in source.constants(str(path.relative_to(ROOT / "tf_dist"))):
            if isinstance(one.value, str):
                found[one.name] = one.value
    return found


def _written() -> Iterator[tuple[str, ast.expr]]:
    """Where the code writes a reason: ``event`` or ``state``, and the expression."""
    for path in DECIDING:
        for node in ast.walk(source.module(str(path.relative_to(ROOT / "tf_dist")))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name == "EmitEvent":
                yield "event", node.args[1]
            elif name == "with_phase" and len(node.args) > 2:
                yield "state", node.args[2]
            elif name in ("replace", "Status"):
                yield from (("state", one.value) for one in node.keywords if one.arg == "reason")


def test_every_reason_that_the_code_writes_is_in_the_glossary() -> None:
    constants = _constants()
    found: dict[str, set[str]] = {"event": set(), "state": set()}
    for kind, expression in _written():
        match expression:
            case ast.Constant(value=str(text)):
                found[kind].add(text)
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in constants:
                found[kind].add(constants[name])
    assert len(found["event"]) > 10
    assert len(found["state"]) > 10
    assert found["state"] <= REASONS.keys()
    assert found["event"] <= REASONS.keys() | EVENTS.keys()
    named = {*map(str, PendingReason), *map(str, Event), *HOLDING_REASONS, *map(str, ENDS)}
    assert named <= REASONS.keys()


def test_the_glossary_has_no_word_that_the_code_does_not() -> None:
    text = "\n".join(path.read_text() for path in DECIDING)
    made = {
        f"{verb}{do}{kind}"
        for verb in ("Successful", "Failed")
        for do in ("Create", "Delete")
        for kind in ("Pod", "Service")
    }
    words = CONDITIONS.keys() | REASONS.keys() | EVENTS.keys() - made
    assert [word for word in words if f'"{word}"' not in text] == []


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
