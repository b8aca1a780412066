"""The operator: one task, one job. What a try does when is said in docs/airflow.md; nothing is decided here."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tf_dist.airflow.links import tfjob
from tf_dist.airflow.masking import masked, masked_errors
from tf_dist.airflow.operators.operator_arguments import BaseTFJobOperator, task_failure
from tf_dist.airflow.task_options import OPTIONS
from tf_dist.airflow.version_compat import TaskDeferralError, TaskDeferralTimeout, is_test_run
from tf_dist.core.pipeline.run_options import Face, documented
from tf_dist.errors import InvalidJob

if TYPE_CHECKING:
    from airflow.sdk import Context
    from jinja2 import Environment


_DEEP: Final = frozenset({"job", "overrides", "op_args", "op_kwargs"})
"""Fields in which values stand deep, and that are part of the document once that is made."""


class TFJobOperator(BaseTFJobOperator):
    """Runs a distributed TensorFlow job (TFJob v1 or v1alpha1, Volcano Job) and waits for it."""

    ui_color = "#ffe0b2"
    operator_extra_links = (tfjob.JobLink(), tfjob.TensorBoardLink(), tfjob.CheckpointLink())

    _given: Mapping[str, Any] | None = None  # the fields, as the DAG has them

    def _do_render_template_fields(
        self, parent: Any, template_fields: Iterable[str], context: Context, jinja_env: Environment, seen_oids: set[int]
    ) -> None:
        """Fill in the fields; ``job`` is the whole document then, which is what Airflow shows as rendered.

        A document that is wrong stays as it was given: ``execute`` says what is wrong with it.
        """
        if parent is not self:  # what stands in a field, and has fields of its own
            super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)
            return
        # Several tries of one process may fill in the same object.
        if self._given is None:
            self._given = {name: getattr(self, name) for name in template_fields}
        for name, value in self._given.items():
            setattr(self, name, value)
        self.request = self.invalid = None
        super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)
        try:
            self.request = self.read_request(lambda value: self.render_template(value, context))
            self.job = dict(self.request.entry.written.content)
        except InvalidJob as error:
            self.invalid = error
        finally:
            # What is submitted is known. Airflow shows these, and masks what stands in them up to a certain depth.
            for name in _DEEP.intersection(template_fields):
                setattr(self, name, masked(getattr(self, name)))

    # What Airflow calls. What it takes to run a job is imported then, and not where DAGs are only read.

    @masked_errors()
    def execute(self, context: Context) -> Any:
        """Create the job or take up the one there is, and wait for it; the result."""
        from tf_dist.airflow.operators.task_run import TaskRun

        with TaskRun(self, context) as run:
            return run.execute()

    @masked_errors()
    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Go on after the trigger: the event holds all there is to know."""
        from tf_dist.airflow.operators.task_run import TaskRun

        with TaskRun(self, context) as run:
            return run.finish(run.job(), event)

    @masked_errors()
    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on after a deferral; one that Airflow ended by itself has left the job alone."""
        from tf_dist.airflow.operators.task_run import TaskRun

        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (TaskDeferralError, TaskDeferralTimeout) as error:
            with TaskRun(self, context) as run:
                run.trigger_lost(error, late=isinstance(error, TaskDeferralTimeout))
            raise

    def on_kill(self) -> None:
        """Called in a signal handler, when a user ends the task and when the worker is asked to go: only take note."""
        self.killed = True
        if is_test_run():
            # No other process goes on with the job then: as Ctrl-C, which ends a wait in the trigger, too.
            signal.raise_signal(signal.SIGINT)

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> Any:
        """What OpenLineage's provider asks for after the task, also after one that failed."""
        from tf_dist.airflow.jobs.lineage import job_lineage

        return job_lineage(self.result)

    @masked_errors()
    def dry_run(self) -> None:
        """Print what would be submitted, without a cluster; AirflowFailException says what is wrong with it."""
        import yaml

        try:
            request = self.read_request(lambda value: value)
        except InvalidJob as error:
            raise task_failure(error) from None
        print(masked(yaml.safe_dump(request.entry.document, sort_keys=False)))  # noqa: T201


TFJobOperator.__doc__ = f"{TFJobOperator.__doc__}{documented(OPTIONS, Face.OPERATOR)}"
