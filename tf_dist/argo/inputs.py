"""What the workflow fills in at one place of a step's job, each value of a type of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from hera.workflows import Parameter

from tf_dist.core.inputs import InputType, JobInput
from tf_dist.errors import Problem

_TYPES: Final[Mapping[type, InputType]] = {
    str: InputType.STRING,
    int: InputType.INTEGER,
    float: InputType.NUMBER,
    bool: InputType.BOOLEAN,
}


@dataclass(frozen=True, slots=True)
class Input:
    """An input parameter of the step, whose value goes to one place of the job: ``Input("steps", int, minimum=1)``.

    ``type``: ``str``, ``int``, ``float`` or ``bool``. ``default``: without one each use of the step says it; an empty
    value leaves the job as it is. ``minimum``, ``maximum``, ``pattern``, ``enum``: what else the launcher demands; it
    ends with 2, and submits nothing, where a value is something else. ``text``: what stands around the value, which
    takes the place of ``{}``: ``--steps={}``.
    """

    name: str
    type: type = str
    _: KW_ONLY
    default: str | float | bool | None = None
    minimum: float | None = None
    maximum: float | None = None
    pattern: str = ""
    enum: Sequence[str | float] = ()
    text: str = ""

    def parameter(self) -> Parameter:
        """The step's input parameter."""
        if self.default is None:
            return Parameter(name=self.name)
        return Parameter(name=self.name, default=self.default)

    @property
    def usual(self) -> str:
        """The default as text; "" if there is none, or if it is known only in the workflow."""
        if self.default is None or (isinstance(self.default, str) and "{{" in self.default):
            return ""
        return json.dumps(self.default) if isinstance(self.default, bool) else str(self.default)

    def at(self, path: str) -> JobInput:
        """The declaration, for a place of the job."""
        return JobInput(
            name=self.name,
            path=path,
            type=_TYPES.get(self.type, InputType.STRING),
            minimum=self.minimum,
            maximum=self.maximum,
            pattern=self.pattern,
            enum=tuple(self.enum),
            text=self.text,
        )

    def problems(self, path: str) -> Iterator[Problem]:
        """What is wrong with it."""
        if self.type not in _TYPES:
            known = ", ".join(one.__name__ for one in _TYPES)
            yield Problem(f"input {self.name}", f"{self.type!r} is none of {known}")
        yield from self.at(path).problems()
