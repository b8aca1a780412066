"""Placeholders of template languages that were not filled in, and how each language is rendered."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from tf_dist.core.model.fieldpath import FieldPath, parse_field_path
from tf_dist.errors import Problem


class Placeholder(NamedTuple):
    """A placeholder in a text."""

    text: str
    """The placeholder as written."""
    hint: str
    """How to render its template language."""
    start: int
    """Its position in the text."""


_ARGO: Final = "inputs|outputs|workflow|steps|tasks|item|pod|retries|lastRetry|node|parameters|cronworkflow"
_GO: Final = (
    "if|else|with|range|end|define|block|template|include|toYaml|toJson|default|quote|tpl|required|printf|int|not"
)
_YTT: Final = re.compile(
    r"#@\s*(?:data\.|load\(|if\b|for\b|end\b|def\b|overlay\b)[^\n]*|#@(?:data/values|overlay/)[^\n]*"
)
# The first matching pattern decides the language. In a long text of opening brackets, the end of each would be searched
# up to the end of the text, so the length of a placeholder is limited.
_LANGUAGES: Final = tuple(
    (re.compile(pattern.replace(r"\n]*", r"\n]{0,200}")), hint)
    for pattern, hint in (
        (
            r"\{\{-?\s*(?:(?:with|range)\s+)?\.(?:Trial|NameSpace|HyperParameters)\b[^}\n]*\}\}"
            r"|\$\{trial(?:Parameters|Spec)\.[^}\n]*\}",
            "Katib renders it for each trial of an Experiment: submit the Experiment, or write a value",
        ),
        (
            rf"\{{\{{=?\s*(?:{_ARGO})\b[^}}\n]*\}}\}}",
            "Argo renders it when the workflow runs: submit the workflow, or write a value",
        ),
        (
            rf"\{{\{{-?\s*(?:/\*|[.$\"(]|(?:{_GO})\b)[^}}\n]*\}}\}}",
            "render the template first: helm template CHART | tf-dist validate -",
        ),
        (
            r"\{\{[^}\n]*\}\}|\{%-?[^%\n]*%\}",
            "render the template first, with Jinja for example; in Airflow, TFJobOperator(job=...) renders it",
        ),
        (
            r"\$\((?:params|context|tasks|workspaces)\.[^)\n]*\)",
            "Tekton renders it when the pipeline runs: write a value",
        ),
        (
            r"\$\{[A-Za-z_][^}\n]*\}|\$\([A-Za-z_][\w.-]*\)|\$[A-Za-z_]\w*",
            "fill it in first: envsubst < FILE | tf-dist validate -",
        ),
        (
            r"%\([A-Za-z_][\w.]*\)[sdifr]|%[A-Z_]{2,}%|@[A-Za-z_][\w.-]*@|__[A-Z][A-Z0-9_]*__|<[A-Za-z][\w .-]*>"
            r"|\[\[[^\]\n]*\]\]|\{[A-Za-z_]\w*\}",
            "write a value",
        ),
    )
)
_JSONNET: Final = re.compile(
    r"\bstd\.[a-z]\w*|^\s*local\s+\w+\s*=.*|\bimport(?:str)?\s+['\"][^'\"\n]*['\"]", re.MULTILINE
)
_TEMPLATES: Final = ((_JSONNET, "render it first: jsonnet FILE | tf-dist validate -"), *_LANGUAGES[:4])
"""Languages that are recognized anywhere in a file; the others are recognized only in a value."""
_LISTS_OF_WORDS: Final = frozenset({"command", "args"})  # a shell may replace placeholders in them


def find_placeholder(text: str) -> Placeholder | None:
    """The first placeholder of a value."""
    return _first_of(_LANGUAGES, text)


def find_ytt(text: str) -> Placeholder | None:
    """The first expression of ytt in a file. YAML reads these expressions as comments, so their values are missing."""
    return _first_of([(_YTT, "render the template first: ytt -f FILE | tf-dist validate -")], text)


def find_template(text: str) -> Placeholder | None:
    """The first placeholder in a file that is not YAML, of the language that is recognized most reliably."""
    return _first_of(_TEMPLATES, text)


def _first_of(languages: Iterable[tuple[re.Pattern[str], str]], text: str) -> Placeholder | None:
    for pattern, hint in languages:
        if found := pattern.search(text):
            return Placeholder(found[0].strip(), hint, found.start())
    return None


def placeholder_problem(path: str, found: Placeholder) -> Problem:
    """The message about a value that contains a placeholder."""
    return Problem(path, f"has the placeholder {found.text}, which was not filled in", found.hint)


def explained(document: Any, problems: Iterable[Problem]) -> Iterator[Problem]:
    """The problems. Problems of values with placeholders are replaced by a message about the placeholder."""
    for problem in problems:
        found = _placeholder_at(document, problem.path)
        yield placeholder_problem(problem.path, found) if found else problem


def _placeholder_at(document: Any, path: str) -> Placeholder | None:
    try:
        parts: FieldPath = parse_field_path(path)
    except ValueError:
        return None
    value = document
    for part in parts:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    if isinstance(value, Mapping) and len(value) == 1:  # YAML reads {name} without quotes as a mapping
        ((key, nothing),) = value.items()
        value = f"{{{key}}}" if nothing is None and isinstance(key, str) else None
    if not isinstance(value, str) or _LISTS_OF_WORDS.intersection(map(str, parts)):
        return None
    return find_placeholder(value)
