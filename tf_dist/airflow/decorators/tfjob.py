"""``@task.tfjob``: a Python function becomes the training code of every replica of a job."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory
from airflow.sdk.definitions._internal.decorators import remove_task_decorator
from airflow.sdk.exceptions import AirflowFailException

from tf_dist.airflow.operators.tfjob import TFJobOperator
from tf_dist.client.tfjob import TFJob

if TYPE_CHECKING:
    from airflow.sdk import Context
    from jinja2 import Environment

_LARGEST: Final = 100_000  # bytes: Linux takes no longer argument of a program than 128 KiB
# The others are arguments of the operator, or say what the function says.
_OWN: Final = {"name", "command", "args", "labels", "annotations", "namespace", "queue"}
_JOB_FIELDS: Final = inspect.signature(TFJob).parameters.keys() - _OWN

_SCRIPT: Final = """\
import json

{source}

_arguments = json.loads({arguments!r})
_result = {function}(*_arguments["args"], **_arguments["kwargs"])
if isinstance(_result, dict):
    print(*(f"{{key}}={{value}}" for key, value in _result.items()), flush=True)
"""


class TFJobDecoratedOperator(DecoratedOperator, TFJobOperator):
    """Every replica runs the function; ``TF_CONFIG`` says which one it is.

    The function is sent as its source: it imports what it needs inside, and its arguments are plain JSON. If it returns
    a dict, the replica prints it as ``name=value``, and so it becomes the result's metrics. ``workers``, ``ps``,
    ``image``, ``resources``, ``env``: those of ``TFJob``; everything else is ``TFJobOperator``'s.
    """

    custom_operator_name = "@task.tfjob"
    template_fields: Sequence[str] = ("op_args", "op_kwargs", *TFJobOperator.template_fields)
    shallow_copy_attrs: Sequence[str] = ("python_callable",)

    def __init__(self, *, python_callable: Callable[..., Any], python: str = "python", **kwargs: Any) -> None:
        fields = {key: kwargs.pop(key) for key in _JOB_FIELDS & kwargs.keys()}
        name = re.sub(r"[^a-z0-9]+", "-", python_callable.__name__.lower()).strip("-") or "job"
        fields.setdefault("image", "python")
        kwargs.setdefault("job", TFJob(name=name, command=[python, "-c", "pass"], **fields))
        self._native_arguments = kwargs.get("render_template_as_native_obj")
        super().__init__(python_callable=python_callable, **kwargs)

    def execute(self, context: Context) -> Any:
        """Put the function into the job, and run that."""
        self.job = _with_script(self.job, self._script())
        return TFJobOperator.execute(self, context)

    def render_template(
        self, content: Any, context: Context, jinja_env: Environment | None = None, seen_oids: set[int] | None = None
    ) -> Any:
        """Fill in as ``TFJobOperator`` does; the function's arguments as the DAG says (they may be native)."""
        if content is not self.op_args and content is not self.op_kwargs:
            return super().render_template(content, context, jinja_env, seen_oids)
        usual, self.render_template_as_native_obj = self.render_template_as_native_obj, self._native_arguments
        try:
            return super().render_template(content, context, None, seen_oids)
        finally:
            self.render_template_as_native_obj = usual

    def get_python_source(self) -> str:
        """The function as it is written, without the task's decorators.

        Airflow's own loses lines that begin with ``#``, within strings too, and breaks lines at U+2028 and the like.
        """
        source = inspect.getsource(self.python_callable)
        whole = f"if True:\n{source}" if source[:1].isspace() else source
        return remove_task_decorator(whole, self.custom_operator_name)

    def _script(self) -> str:
        try:
            arguments = json.dumps({"args": list(self.op_args), "kwargs": dict(self.op_kwargs)})
        except (TypeError, ValueError) as error:
            raise AirflowFailException(f"the arguments of a @task.tfjob function are sent as JSON: {error}") from None
        function = self.python_callable.__name__
        script = _SCRIPT.format(source=self.get_python_source(), arguments=arguments, function=function)
        if len(script.encode()) > _LARGEST:
            raise AirflowFailException(
                f"the function and its arguments make {len(script.encode())} bytes, and at most {_LARGEST} can be "
                "sent: import the code from a package in the image, and hand over where data are instead of the data"
            )
        return script


def _with_script(job: Any, script: str) -> dict[str, Any]:
    """The document with the script as what every container runs; the rest is shared."""
    groups = {name: _running(group, script) for name, group in job["spec"]["tfReplicaSpecs"].items()}
    return {**job, "spec": {**job["spec"], "tfReplicaSpecs": groups}}


def _running(group: Mapping[str, Any], script: str) -> dict[str, Any]:
    template = group["template"]
    (container,) = template["spec"]["containers"]
    # Kubernetes expands $(NAME) in arguments, and $$ is a dollar.
    command = [*container["command"][:-1], script.replace("$", "$$")]
    spec = {**template["spec"], "containers": [{**container, "command": command}]}
    return {**group, "template": {**template, "spec": spec}}


def tfjob_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """``@task.tfjob(image=…, workers=2, ps=1)``; see ``TFJobDecoratedOperator``."""
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=TFJobDecoratedOperator, **kwargs
    )
