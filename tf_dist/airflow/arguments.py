"""What an operator's arguments mean, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowFailException

from tf_dist.airflow.documents import Order, order_of
from tf_dist.errors import InvalidJob, Problem

if TYPE_CHECKING:
    from tf_dist.airflow.operator import TFJobOperator

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "on_finish_action": ("delete_job", "keep_job", "delete_succeeded_job", "delete_active_job"),
    "on_kill_action": ("delete_job", "keep_job"),
    "driver": ("inline", "controller"),
}


def printed(operator: TFJobOperator) -> str:
    """The document as it would be submitted, but for what only a run knows; AirflowFailException."""
    import yaml

    try:
        order = order_from(operator, lambda value: value)
    except InvalidJob as error:
        raise AirflowFailException(f"the job cannot be run:\n{error}") from None
    return str(yaml.safe_dump(order.entry.document, sort_keys=False))


def order_from(operator: TFJobOperator, render: Callable[[Any], Any]) -> Order:
    """What the operator is to run; InvalidJob with everything that is wrong with it."""
    _check(operator)
    folder = Path(operator.dag.folder) if operator.has_dag() else Path.cwd()
    return order_of(
        operator.job,
        folder,
        render,
        overrides=operator.overrides or {},
        queue_name=operator.queue_name,
        name=operator.name,
        default_name=operator.task_id,
    )


def _check(operator: TFJobOperator) -> None:
    """InvalidJob with everything that is wrong with the arguments."""
    problems = [
        Problem(name, f"{getattr(operator, name)!r} is none of {', '.join(known)}")
        for name, known in _CHOICES.items()
        if getattr(operator, name) not in known
    ]
    if not operator.wait_for_completion and operator.driver == "inline":
        hint = "set driver='controller' where there is one (tf-dist controller), or wait"
        problems.append(Problem("wait_for_completion", "nobody would drive the job once the task is done", hint))
    if problems:
        raise InvalidJob(problems)
