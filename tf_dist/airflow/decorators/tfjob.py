"""``@task.tfjob``: a Python function becomes the training program of every replica."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from tf_dist.airflow.decorators.function_source import function_source
from tf_dist.airflow.operators.tfjob import TFJobOperator
from tf_dist.airflow.version_compat import TASKS_CHOOSE_NATIVE, AirflowException, AirflowFailException
from tf_dist.client.tfjob import TFJob
from tf_dist.core.diagnostics.metrics_parser import RESULT_MARK
from tf_dist.errors import InvalidJob, Problem

if TYPE_CHECKING:
    from airflow.sdk import Context
    from jinja2 import Environment

_LARGEST: Final = 100_000  # bytes: Linux limits each argument of a program to 128 KiB
_BOTH: Final = {"image", "workers", "ps", "env_vars", "resources", "priority_class"}
# Other arguments that both accept belong to the operator.
_JOB_FIELDS: Final = (
    inspect.signature(TFJob).parameters.keys() - inspect.signature(TFJobOperator).parameters.keys()
) | _BOTH
_REFUSED: Final = {
    "command": "name the interpreter with python=, or run a command with TFJobOperator",
    "job": "give image, workers and the like here, or run the job with TFJobOperator",
}

# Every replica prints a returned dict as metrics. The value of the leader is the value of the task. If the value fits
# into 4096 bytes, the limit of Kubernetes, it is also in the termination message, which is stored in the pod.
_SCRIPT: Final = """\
{lazy}import json

{source}

_arguments = json.loads({arguments!r})
_result = {function}(*_arguments["args"], **_arguments["kwargs"])


def _plain(value, depth=0):
    import enum

    if isinstance(value, enum.Enum):
        return _plain(value.value, depth)
    if value is None or type(value) in (str, int, float, bool):
        return value
    if depth < 100:
        if isinstance(value, dict):
            return {{str(_plain(key, depth + 1)): _plain(one, depth + 1) for key, one in value.items()}}
        if isinstance(value, (list, tuple)):
            return [_plain(one, depth + 1) for one in value]
        if isinstance(value, (set, frozenset)):
            return sorted((_plain(one, depth + 1) for one in value), key=lambda one: (str(type(one)), str(one)))
        for name in ("numpy", "tolist", "isoformat"):
            method = getattr(value, name, None)
            if callable(method) and not isinstance(value, type):
                try:
                    return _plain(method(), depth + 1)
                except Exception:
                    pass
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return str(value)


def _tell(result):
    import os
    import sys

    sys.stdout.flush()
    out = sys.__stdout__ or sys.stdout
    config = json.loads(os.environ.get("TF_CONFIG") or "{{}}")
    leader = ["chief", 0] if "chief" in config.get("cluster", {{}}) else ["worker", 0]
    task = config.get("task") or {{"type": leader[0], "index": 0}}
    print(file=out)  # what the function wrote last may have no line end
    if isinstance(result, dict):
        print(*(f"{{key}}={{value}}" for key, value in result.items()), file=out, flush=True)
    if [task["type"], task["index"]] == leader:
        text = {mark!r} + json.dumps(result)
        print(text, file=out, flush=True)
        if len(text.encode()) <= 4096 and os.path.exists("/dev/termination-log"):
            with open("/dev/termination-log", "w") as file:
                file.write(text)


_tell(_plain(_result))
"""

_SERVER: Final = """\
import json
import os

import tensorflow as tf

config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
tf.distribute.Server(config["cluster"], job_name=task["type"], task_index=task["index"], protocol="grpc").join()
"""
"""The program of parameter servers."""


class TFJobDecoratedOperator(DecoratedOperator, TFJobOperator):
    """Runs a Python function in every replica except parameter servers. ``TF_CONFIG`` tells the replicas apart.

    tf-dist sends the source of the function. The function must import the modules that it uses. If it uses names from
    outside, it is refused when Airflow parses the DAG. Its arguments are JSON. Its return value becomes JSON: arrays
    and sets become lists, and other types become text. The value of the leader (the chief, or worker 0) is the XCom of
    the task, with the ``multiple_outputs`` of TaskFlow. The result of the job is the XCom ``result``. Each replica
    prints a returned dict as ``name=value``, so its numbers become metrics. Parameter servers run TensorFlow's standard
    server.

    ``workers``, ``ps``, ``image``, ``resources``, ``env_vars``, ``priority_class``, and all arguments that
    ``TFJobOperator`` does not have, are those of ``TFJob``. All other arguments are those of ``TFJobOperator``.
    """

    custom_operator_name = "@task.tfjob"
    template_fields: Sequence[str] = ("op_args", "op_kwargs", *TFJobOperator.template_fields)
    shallow_copy_attrs: Sequence[str] = ("python_callable",)

    def __init__(self, *, python_callable: Callable[..., Any], python: str = "python3", **kwargs: Any) -> None:
        if given := _REFUSED.keys() & kwargs.keys():
            raise InvalidJob([Problem(name, "the function is what runs", _REFUSED[name]) for name in sorted(given)])
        self._source = function_source(python_callable)
        fields = {key: kwargs.pop(key) for key in _JOB_FIELDS & kwargs.keys()}
        name = re.sub(r"[^a-z0-9]+", "-", python_callable.__name__.lower()).strip("-") or "job"
        fields.setdefault("image", "python")
        kwargs["job"] = TFJob(name=name, command=[python, "-c", "pass"], **fields)
        self._native_arguments = kwargs.get("render_template_as_native_obj")
        super().__init__(python_callable=python_callable, **kwargs)

    def execute(self, context: Context) -> Any:
        """Run the job."""
        return TFJobOperator.execute(self, context)

    def returned(self, result: Mapping[str, Any]) -> Any:
        """The return value of the function."""
        if "value" not in result:
            raise AirflowException(
                "the job succeeded, but the value of its function is not in its leader's log or termination message: "
                "did the function end the process itself, or was its node gone too soon?"
            )
        return result["value"]

    def document(self) -> dict[str, Any]:
        """The document with the function."""
        script = self._script()
        groups = {
            name: _running(group, _SERVER if name == "PS" else script)
            for name, group in self.job["spec"]["tfReplicaSpecs"].items()
        }
        return {**self.job, "spec": {**self.job["spec"], "tfReplicaSpecs": groups}}

    def render_template(
        self, content: Any, context: Context, jinja_env: Environment | None = None, seen_oids: set[int] | None = None
    ) -> Any:
        """Render like ``TFJobOperator``, except that the function's arguments may be native, if the DAG says so."""
        if not TASKS_CHOOSE_NATIVE or (content is not self.op_args and content is not self.op_kwargs):
            return super().render_template(content, context, jinja_env, seen_oids)
        usual, self.render_template_as_native_obj = self.render_template_as_native_obj, self._native_arguments
        self.keeps_types = True
        try:
            return super().render_template(content, context, None, seen_oids)
        finally:
            self.render_template_as_native_obj, self.keeps_types = usual, False

    def get_python_source(self) -> str:
        """The function as written, without the task's decorators."""
        return self._source.text

    def _script(self) -> str:
        try:
            given = {"args": list(self.op_args), "kwargs": dict(self.op_kwargs)}
            arguments = json.dumps(given, default=_plain_number)
        except (TypeError, ValueError) as error:
            raise AirflowFailException(f"the arguments of a @task.tfjob function are sent as JSON: {error}") from None
        function = self.python_callable.__name__
        script = _SCRIPT.format(
            lazy="from __future__ import annotations\n\n" if self._source.lazy else "",
            source=self.get_python_source(),
            arguments=arguments,
            function=function,
            mark=RESULT_MARK,
        )
        if len(script.encode()) > _LARGEST:
            raise AirflowFailException(
                f"the function and its arguments make {len(script.encode())} bytes, and at most {_LARGEST} can be "
                "sent: import the code from a package in the image, and pass the location of data instead of the data"
            )
        return script


def _plain_number(value: Any) -> Any:
    """Convert an array or a number of numpy to Python's types, for JSON."""
    if callable(plain := getattr(value, "tolist", None)):
        return plain()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _running(group: Mapping[str, Any], script: str) -> dict[str, Any]:
    template = group["template"]
    (container,) = template["spec"]["containers"]
    # Kubernetes expands $(NAME) in arguments, and reduces $$ to a dollar sign.
    command = [*container["command"][:-1], script.replace("$", "$$")]
    spec = {**template["spec"], "containers": [{**container, "command": command}]}
    return {**group, "template": {**template, "spec": spec}}


def tfjob_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """``@task.tfjob(image=…, workers=2, ps=1)``; see ``TFJobDecoratedOperator``."""
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=TFJobDecoratedOperator, **kwargs
    )
