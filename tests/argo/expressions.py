"""The part of Argo's template language that the examples use. Unknown names are errors, like in Argo."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace

from tests.argo.strict import HASHED, REFERENCE, REPLACED


def substituted(text: str, scope: Mapping[str, str]) -> str:
    """The text with every ``{{…}}`` substituted once, like Argo does it."""

    def value(found: re.Match[str]) -> str:
        name = found[1].strip()
        if (replaced := REPLACED.fullmatch(name)) is not None:
            return scope[f"{replaced[3]}.parameters.{replaced[4]}"].replace(replaced[1], replaced[2])
        if (hashed := HASHED.fullmatch(name)) is not None:
            return hashlib.sha256(scope[f"{hashed[2]}.parameters.{hashed[3]}"].encode()).hexdigest()[: int(hashed[1])]
        assert name in scope, f"{{{{{name}}}}} means nothing here; known: {', '.join(sorted(scope))}"
        return scope[name]

    return REFERENCE.sub(value, text)


def depends(text: str, holds: Callable[[str, str], bool]) -> bool:
    """A task's ``depends``. ``holds`` returns whether a task is in a state. "" means an end without failure."""

    def term(found: re.Match[str]) -> str:
        return str(holds(found[1], found[2] or ""))

    return _boolean(re.sub(r"([a-z0-9][a-z0-9-]*)(?:\.([A-Z]\w+))?", term, text))


def depends_on(text: str) -> set[str]:
    """The tasks that ``depends`` names."""
    return set(re.findall(r"(?<![.\w-])[a-z0-9][a-z0-9-]*", text))


def when(text: str) -> bool:
    """A task's ``when`` after substitution: comparisons of words, joined by ``||`` or ``&&``."""
    for joint, holds in (("||", any), ("&&", all)):
        if joint in text:
            return holds([when(part) for part in text.split(joint)])
    found = re.fullmatch(r"\s*'?(.*?)'?\s*(==|!=)\s*'?(.*?)'?\s*", text)
    assert found, f"this when is more than is understood here: {text}"
    return (found[1] == found[3]) is (found[2] == "==")


def retried(expression: str, *, status: str, exit_code: int) -> bool:
    """A ``retryStrategy.expression`` about the last try."""
    last = SimpleNamespace(status=status, exitCode=str(exit_code))
    return _boolean(expression, lastRetry=last, asInt=int)


def _boolean(text: str, **names: object) -> bool:
    python = text.replace("||", " or ").replace("&&", " and ")
    python = re.sub(r"!(?!=)", " not ", python)
    return bool(eval(python, {"__builtins__": {}}, dict(names)))
