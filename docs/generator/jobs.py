"""What is written on jobs and said about them: annotations and labels, reasons, outcomes, exit codes, errors."""

from __future__ import annotations

import re

from docs.generator import source
from docs.generator.markdown import code, prose, table
from docs.generator.source import Undocumented
from tf_dist import errors
from tf_dist.client.exit_codes import exit_code_of_error, exit_code_of_outcome
from tf_dist.core.model.reasons import CONDITIONS, Group, Level, OutcomeKind, Reason, Row

# Not a key: the group of an API, or the prefix alone.
_NO_KEYS = re.compile(r"tf-dist\.dev/(?:v\d\w*)?")


def keys() -> dict[str, str]:
    """Every label, annotation and taint of tf-dist's own with its description, which begins with what carries it."""
    found: dict[str, str] = {}
    for one in source.defined_keys():
        if not _NO_KEYS.fullmatch(str(one.value)):
            found[str(one.value)] = found.get(str(one.value)) or one.text
    if missing := [key for key, text in found.items() if ": " not in text]:
        raise Undocumented(f"no description such as 'Annotation of a job: …' of {', '.join(sorted(missing))}")
    return found


def annotations() -> str:
    """A table for each kind of object that carries them; what users may set comes first."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for key, text in sorted(keys().items()):
        carrier, _, meaning = text.partition(": ")
        groups.setdefault(carrier, []).append((code(key), prose(meaning[:1].upper() + meaning[1:])))
    ordered = sorted(groups.items(), key=lambda group: ("you may set" not in group[0], -len(group[1])))
    return "\n\n".join(f"## {carrier}\n\n{table(('key', 'meaning'), rows)}" for carrier, rows in ordered)


def reasons() -> str:
    """Conditions, and a table for each group of the registry of reasons."""
    conditions = table(("condition", "meaning"), [(code(k), prose(v)) for k, v in CONDITIONS.items()])
    groups = {group: [reason.row for reason in Reason if reason.row.group is group] for group in Group}
    parts = [f"## {group}\n\n{_NOTES.get(group, '')}{_reasons(group, rows)}" for group, rows in groups.items()]
    return "\n\n".join((f"## Conditions of a TFJob\n\n{conditions}", *parts))


_NOTES = {Group.EVENT: "The reason of an Event is the reason of the job's new state, or one of these:\n\n"}


def _reasons(group: Group, rows: list[Row]) -> str:
    if group is Group.EVENT:
        return table(("reason", "meaning"), [(code(row.word), prose(row.meaning)) for row in rows])
    if group is not Group.END:
        titles = ("reason", "meaning", "what to do")
        return table(titles, [(code(row.word), prose(row.meaning), prose(row.advice)) for row in rows])
    return table(
        ("reason", "meaning", "outcome", "what to do"),
        [(code(row.word), prose(row.meaning), _outcome(row), prose(row.advice)) for row in rows],
    )


def _outcome(row: Row) -> str:
    """How a job ends for it; "" where that depends on the policy which answers it."""
    return "" if row.level is Level.INFO and row.outcome is OutcomeKind.FAILED else code(row.outcome.value)


def outcomes() -> str:
    """How a job ended, in the one vocabulary, with the exit code."""
    texts = {str(one.value): one.text for one in source.members("core/model/reasons.py", "OutcomeKind")}
    if missing := [kind for kind, text in texts.items() if not text]:
        raise Undocumented(f"OutcomeKind: no description of {', '.join(missing)}")
    rows = [(code(kind.value), prose(texts[kind.value]), str(exit_code_of_outcome(kind))) for kind in OutcomeKind]
    return table(("outcome", "meaning", "exit code"), rows)


def exit_codes() -> str:
    """The exit codes of commands and steps."""
    found = [one for one in source.constants("client/exit_codes.py") if isinstance(one.value, int)]
    if missing := [one.name for one in found if not one.text]:
        raise Undocumented(f"client/exit_codes.py: no description of {', '.join(missing)}")
    rows = [(f"{one.value} + n" if one.name == "SIGNAL_BASE" else f"{one.value}", prose(one.text)) for one in found]
    return table(("exit code", "meaning"), rows)


def error_classes() -> str:
    """All errors, with what each means and the exit code of a command that ends with it."""
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.TFDistError)]
    rows = [
        (code(kind.__name__), prose(" ".join((kind.__doc__ or "").split("\n\n")[0].split())), _base(kind), _code(kind))
        for kind in kinds
    ]
    return table(("error", "meaning", "a kind of", "exit code"), rows)


def _base(kind: type) -> str:
    return "" if kind is errors.TFDistError else code(kind.__bases__[0].__name__)


def _code(kind: type[errors.TFDistError]) -> str:
    made = kind([]) if issubclass(kind, errors.InvalidJob) else kind("")
    return str(exit_code_of_error(made))
