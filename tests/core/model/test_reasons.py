"""The registry of reasons: the code writes only registered reasons, and each of them is written and tested."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tf_dist.core.model.job import Event
from tf_dist.core.model.reasons import HOLDING_REASONS, Category, Group, Level, OutcomeKind, Reason, reason_row

ROOT = Path(__file__).parents[3]
CODE = {
    path: ast.parse(path.read_text())
    for path in (ROOT / "tf_dist").rglob("*.py")
    if path.name != "reasons.py" and "Reason" in path.read_text()
}
TESTS = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
# Reasons of Events about pods and Services are composed (``job_events.object_event``).
OBJECT_EVENTS = {
    f"{verb}{do}{kind}"
    for verb in ("Successful", "Failed")
    for do in ("Create", "Delete")
    for kind in ("Pod", "Service")
}


def _names(node: ast.AST) -> Iterator[str]:
    """The members of ``Reason`` below a node, except those that are only compared."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Reason":
        yield node.attr
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.Compare):
            yield from _names(child)


def _written(tree: ast.AST) -> Iterator[ast.expr]:
    """The expressions that become the reason of a status, of an Event or of a verdict."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in ("EmitEvent", "with_phase") and len(node.args) > 2:
                yield node.args[1 if name == "EmitEvent" else 2]
            elif name in ("replace", "Status", "Wait"):
                yield from (one.value for one in node.keywords if one.arg == "reason")


def test_reasons_are_written_as_members_of_the_registry() -> None:
    found = [(path.name, one) for path, tree in CODE.items() for one in _written(tree)]
    assert len(found) > 40
    assert [(name, ast.unparse(one)) for name, one in found if isinstance(one, ast.Constant)] == []
    assert [(name, one.id) for name, one in found if isinstance(one, ast.Name) and one.id.isupper()] == []


def test_each_reason_is_written_by_the_code_or_by_kubernetes() -> None:
    written = {Reason[name] for tree in CODE.values() for name in _names(tree)}
    assert set(Reason) - written - set(HOLDING_REASONS) == {*map(Reason, Event), *map(Reason, OBJECT_EVENTS)} - written


def test_each_reason_occurs_in_a_test() -> None:
    text = "\n".join(path.read_text() for path in TESTS)
    assert [reason for reason in Reason if reason.value not in text and f"Reason.{reason.name}" not in text] == []


def test_every_waiting_reason_has_category_and_advice() -> None:
    waiting = [reason.row for reason in Reason if reason.row.group in (Group.WAITING, Group.CONTAINER)]
    assert [row.word for row in waiting if not row.category or not row.advice] == []
    assert {reason for reason in Reason if reason.row.unreachable} == {Reason.NEVER_FITS, Reason.UNREADABLE}


def test_unknown_reason_has_default_row() -> None:
    row = reason_row("AReasonOfALaterRelease")
    assert (row.word, row.level, row.category, row.outcome) == (
        "AReasonOfALaterRelease",
        Level.INFO,
        None,
        OutcomeKind.FAILED,
    )
    assert (row.charged, row.is_event, row.cuts_pods_short) == (True, True, False)
    assert reason_row("Preempted") is Reason.PREEMPTED.row
    assert Reason.PREEMPTED.row.category is Category.PREEMPTED
