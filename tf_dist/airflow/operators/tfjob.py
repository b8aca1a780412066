"""The operator: one task, one job. What a try does when is said in docs/airflow.md; nothing is decided here."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tf_dist.airflow.links import tfjob
from tf_dist.airflow.masking import masked
from tf_dist.airflow.operators.base import BaseTFJobOperator
from tf_dist.airflow.versions import (
    TaskDeferralError,
    TaskDeferralTimeout,
    is_test_run,
)
from tf_dist.errors import InvalidJob

if TYPE_CHECKING:
    from airflow.sdk import Context
    from jinja2 import Environment


_DEEP: Final = frozenset({"job", "overrides", "op_args", "op_kwargs"})
"""Fields in which values stand deep, and that are part of the document once that is made."""


class TFJobOperator(BaseTFJobOperator):
    """Runs a distributed TensorFlow job (TFJob v1 or v1alpha1, Volcano Job) and waits for it.

    :param job: the path of a YAML or JSON file (relative ones: from the DAG's folder), a dict, or a ``TFJob``; none:
        the arguments from ``image`` to ``priority_class`` make one, which otherwise stand above what it says.
        (templated; what a file says is templated, too, after it was read)
    :param image: of the containers that train. (templated)
    :param command: what they run, word by word. (templated)
    :param args: the arguments of that. (templated)
    :param workers: how many. (templated)
    :param ps: how many parameter servers. (templated)
    :param env_vars: variables of every container, which keeps those of its own; a mapping instead of a text is a
        ``valueFrom``: ``{"secretKeyRef": {…}}``. (templated)
    :param resources: of each replica, where the arguments make the job; else of its workers. (templated)
    :param priority_class: of the gang. (templated)
    :param name: the job's name, instead of the document's; a few characters are added to it. (templated)
    :param namespace: where it goes; else the document's, the connection's, the context's. (templated)
    :param queue_name: the gang's queue, instead of the document's. (templated)
    :param overrides: values to put into the document: ``{"spec.tfReplicaSpecs.Worker.replicas": 4}``. (templated)
    :param labels: for the job, on top of its own. (templated)
    :param annotations: for the job, on top of its own. (templated)
    :param kubernetes_conn_id: a connection of type ``kubernetes``; the default one need not exist. (templated)
    :param in_cluster: use the cluster that this process is a pod of.
    :param config_file: a kubeconfig. (templated)
    :param cluster_context: a context of it. (templated)
    :param driver: ``auto``: the controller that leads the namespace; where none does, the worker or triggerer that
        waits is one itself. ``controller``: never the worker or triggerer.
    :param durable: a retry takes up the job of an earlier try, or its result; without, it begins anew.
    :param wait_for_completion: without it the task is done once the job is submitted (only with a controller).
    :param deferrable: wait in the triggerer. [``[operators] default_deferrable``]
    :param poll_interval: seconds, or ``30s``, between two attempts to find a job or cluster that is not there.
    :param get_logs: bring the log lines of all replicas into the task's log.
    :param admission_timeout: seconds, or ``10m``, after which a gang without a place is given up
        (``AdmissionTimeout``); with ``fallback``, after which those are tried, too, for as long again. A retry takes
        the job up, with its age.
    :param fallback: what the job may be instead, in order: ``[{"workers": 4}, {"queue_name": "spot"}]``; each may have
        ``workers``, ``ps``, ``queue_name``, ``priority_class``, ``image``, ``node_selector``, ``tolerations``,
        ``resources``. The gang queues once, with all of them. (templated)
    :param on_eviction: what follows when pods are taken away: ``restart`` (as the job says), ``requeue`` (its place is
        given back, and it waits again with its old age), ``fail``, ``fallback`` (the next one comes first). (templated)
    :param on_preemption: the same, when the gang is preempted. (templated)
    :param startup_timeout_seconds: seconds, or ``10m``, from then until it runs (``ImagePullFailed``, ``JobTimeout``).
    :param on_finish_action: ``delete_job``, ``keep_job``, ``delete_succeeded_job``; ``delete_active_job`` deletes only
        one that did not end by itself.
    :param on_kill_action: ``delete_job`` or ``keep_job`` when the task is marked failed, or ends otherwise by a user.
    :param skip_on_exit_code: if the job fails with such an exit code, the task is skipped.
    :param callbacks: one or several ``TFJobCallbacks`` classes.
    :param job_url: a page about the job, with ``{name}`` and ``{namespace}`` filled in. (templated)
    :param tensorboard_url: likewise. (templated)
    """

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
        from tf_dist.airflow.operators.operator_arguments import request_of_operator

        try:
            self.request = request_of_operator(self, lambda value: self.render_template(value, context))
            self.job = dict(self.request.entry.written.content)
        except InvalidJob as error:
            self.invalid = error
        finally:
            # What is submitted is known. Airflow shows these, and masks what stands in them up to a certain depth.
            for name in _DEEP.intersection(template_fields):
                setattr(self, name, masked(getattr(self, name)))

    def document(self) -> Any:
        """The job to run: ``job``, else what the arguments make; a kind of operator may put something into it."""
        from tf_dist.airflow.operators.operator_arguments import built_job

        return built_job(self) if self.job is None else self.job

    def returned(self, result: Mapping[str, Any]) -> Any:
        """The task's return value: what the job came to."""
        return dict(result)

    # What Airflow calls. What it takes to run a job is imported then, and not where DAGs are only read.

    def execute(self, context: Context) -> Any:
        """Create the job or take up the one there is, and wait for it; the result."""
        from tf_dist.airflow.operators.task_run import TaskRun

        with TaskRun(self, context) as run:
            return run.execute()

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Go on after the trigger: the event holds all there is to know."""
        from tf_dist.airflow.operators.task_run import TaskRun

        with TaskRun(self, context) as run:
            return run.finish(run.job(), event)

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

    def dry_run(self) -> None:
        """Print what would be submitted, without a cluster; AirflowFailException says what is wrong with it."""
        from tf_dist.airflow.operators.operator_arguments import dry_run_text

        print(masked(dry_run_text(self)))  # noqa: T201
