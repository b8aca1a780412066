"""Templates of operators and sensors: Jinja renders them as text, even in DAGs with native templates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk import BaseOperator
from jinja2.nativetypes import NativeEnvironment

from tf_dist.airflow.task_options import comes_later
from tf_dist.airflow.version_compat import TASKS_CHOOSE_NATIVE
from tf_dist.core.model.fieldpath import format_field_path
from tf_dist.core.pipeline.run_options import is_template
from tf_dist.errors import Problem

if TYPE_CHECKING:
    from airflow.sdk import Context
    from jinja2 import Environment

_NONE: Final = "None"
_STRUCTURES: Final = (list, tuple, dict, set)
_VALUES: Final = frozenset({"args", "command", "env", "env_vars", "labels", "annotations", "op_args", "op_kwargs"})
"""Keys whose values may be any text of the user, including "None"."""
_SEPARATORS: Final = re.compile(r"[.\[]")

TEXTS: Final[Mapping[str, Any]] = {"render_template_as_native_obj": False} if TASKS_CHOOSE_NATIVE else {}
"""Arguments with which tasks render templates as text, unless the user overrides them."""


class TextTemplates(BaseOperator):
    """Renders templates as text, even in a DAG with ``render_template_as_native_obj``.

    If the task itself sets ``render_template_as_native_obj=True``, a template may render to a list or a mapping.
    Numbers and other scalars remain text.
    """

    shown_names: ClassVar[Mapping[str, str]] = {}
    """The names of arguments whose attributes have different names."""

    keeps_types: bool = False
    """Whether rendered values keep their types, as the arguments of a function do."""

    rendered: bool = False
    """Whether the templates are rendered. Text in braces is a value then, and nothing is known later."""

    unfilled: tuple[Problem, ...] = ()
    """Problems: templates that rendered to the text "None", usually because a value in them is missing."""

    def _do_render_template_fields(
        self, parent: Any, template_fields: Iterable[str], context: Context, jinja_env: Environment, seen_oids: set[int]
    ) -> None:
        if parent is not self:
            super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)
            return
        native = TASKS_CHOOSE_NATIVE and bool(self.render_template_as_native_obj)
        # A running task gets the Jinja environment of its DAG, which may be native although the task is not.
        if TASKS_CHOOSE_NATIVE and isinstance(jinja_env, NativeEnvironment) is not native:
            jinja_env = self.get_template_env()
        given = {name: getattr(self, name) for name in template_fields}
        super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)
        found: list[Problem] = []
        for name, before in given.items():
            if getattr(self, name) == _NONE and is_template(before) and native:
                setattr(self, name, None)
            found += unfilled_problems(before, getattr(self, name), self.shown_names.get(name, name))
        self.unfilled, self.rendered = tuple(found), True

    def later(self, given: object) -> bool:
        """Whether a value of a templated field is known only later."""
        return not self.rendered and comes_later(given)

    def render_template(
        self, content: Any, context: Context, jinja_env: Environment | None = None, seen_oids: set[int] | None = None
    ) -> Any:
        """Render a text that has a template. Other texts are not changed, including their line ends."""
        env = jinja_env = jinja_env or self.get_template_env()
        marks = (env.variable_start_string, env.block_start_string, env.comment_start_string)
        lines = filter(None, (env.line_statement_prefix, env.line_comment_prefix))
        if isinstance(content, str) and not any(mark in content for mark in (*marks, *lines)):
            return content
        found = super().render_template(content, context, jinja_env, seen_oids)
        if not isinstance(content, str) or self.keeps_types or isinstance(found, _STRUCTURES):
            return found
        if not (TASKS_CHOOSE_NATIVE and self.render_template_as_native_obj):
            return found
        # Native Jinja parses its result as Python: "7." becomes 7.0, and '"a"' loses its quotes.
        self.render_template_as_native_obj = False
        try:
            return super().render_template(content, context, self.get_template_env(), seen_oids)
        finally:
            self.render_template_as_native_obj = True


def unfilled_problems(given: Any, filled: Any, name: str = "") -> Iterator[Problem]:
    """The templates of ``given`` that rendered to the text "None", except where any text is valid."""
    yield from _unfilled(given, filled, (name,) if name else ())


def _unfilled(given: Any, filled: Any, path: tuple[str | int, ...]) -> Iterator[Problem]:
    if path and _VALUES.intersection(_SEPARATORS.split(str(path[-1]))):
        return
    if isinstance(given, Mapping) and isinstance(filled, Mapping):
        for key in given.keys() & filled.keys():
            yield from _unfilled(given[key], filled[key], (*path, str(key)))
    elif isinstance(given, list | tuple) and isinstance(filled, list | tuple):
        for index, (one, other) in enumerate(zip(given, filled, strict=False)):
            yield from _unfilled(one, other, (*path, index))
    elif filled == _NONE and is_template(given):
        hint = "write {{ … or 'default' }}, or pass a value that may be None without a template: XComArg"
        yield Problem(format_field_path(path), f"the template {given} gave None", hint)
