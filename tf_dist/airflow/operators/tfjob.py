"""The operator: one task runs one job. ``task_run`` contains the steps of a try."""

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
"""Fields with nested values, which are part of the document."""


class TFJobOperator(BaseTFJobOperator):
    """Runs a distributed TensorFlow job (TFJob v1 or v1alpha1, Volcano Job) and waits for it."""

    ui_color = "#ffe0b2"
    operator_extra_links = (tfjob.JobLink(), tfjob.TensorBoardLink(), tfjob.CheckpointLink())

    _given: Mapping[str, Any] | None = None  # the fields as the DAG sets them

    def _do_render_template_fields(
        self, parent: Any, template_fields: Iterable[str], context: Context, jinja_env: Environment, seen_oids: set[int]
    ) -> None:
        """Render the fields. ``job`` becomes the whole document, which Airflow shows as rendered.

        An invalid document is not changed. ``execute`` reports its problems.
        """
        if parent is not self:  # an object in a field, with its own fields
            super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)
            return
        # Several tries in one process may render the same object.
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
            # Airflow shows these fields, and masks secrets in them only up to a certain depth.
            for name in _DEEP.intersection(template_fields):
                setattr(self, name, masked(getattr(self, name)))

    # Modules that run jobs are imported in these methods, so that parsing a DAG does not load them.

    @masked_errors()
    def execute(self, context: Context) -> Any:
        """Create the job, or adopt the job of an earlier try, and wait for its end. Returns the result."""
        from tf_dist.airflow.operators.task_run import TaskRun

        with TaskRun(self, context) as run:
            return run.execute()

    @masked_errors()
    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Continue after the trigger, with its event."""
        from tf_dist.airflow.operators.task_run import TaskRun

        with TaskRun(self, context) as run:
            return run.finish(run.job(), event)

    @masked_errors()
    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Continue after a deferral. If Airflow ended the deferral, clean up the job, which the trigger did not do."""
        from tf_dist.airflow.operators.task_run import TaskRun

        self.has_job = True
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (TaskDeferralError, TaskDeferralTimeout) as error:
            with TaskRun(self, context) as run:
                run.trigger_lost(error, late=isinstance(error, TaskDeferralTimeout))
            raise

    def on_kill(self) -> None:
        """Record that the task must end. A signal handler calls this when a user ends the task, or the worker stops."""
        self.killed = True
        if is_test_run():
            # No other process continues with the job. Act like Ctrl-C, which also ends a wait in the trigger.
            signal.raise_signal(signal.SIGINT)

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> Any:
        """The lineage of the task for the OpenLineage provider, even after a failure."""
        from tf_dist.airflow.jobs.lineage import job_lineage

        return job_lineage(self.result)

    @masked_errors()
    def dry_run(self) -> None:
        """Print the document to submit, without a cluster. AirflowFailException lists its problems."""
        import yaml

        try:
            request = self.read_request(lambda value: value)
        except InvalidJob as error:
            raise task_failure(error) from None
        print(masked(yaml.safe_dump(request.entry.document, sort_keys=False)))  # noqa: T201


TFJobOperator.__doc__ = f"{TFJobOperator.__doc__}{documented(OPTIONS, Face.OPERATOR)}"
