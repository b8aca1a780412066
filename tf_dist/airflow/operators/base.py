"""Base of the operator: the signature of its arguments, and what they are once they are read.

What each argument means, may be, and is where it is not given stands in its row (``task_options``); here is its type.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tf_dist.airflow.callbacks import TFJobCallbacks
from tf_dist.airflow.hooks.kubernetes_connection import ClusterArguments
from tf_dist.airflow.operators.argument_checks import operator_problems
from tf_dist.airflow.task_options import ATTRIBUTES, DEFAULT_CONNECTION, RENDERERS, TEMPLATED, TaskOptions, read_options
from tf_dist.airflow.templates import TEXTS, TextTemplates
from tf_dist.airflow.versions import conf
from tf_dist.client.tfjob import TFJob
from tf_dist.errors import InvalidJob

if TYPE_CHECKING:
    from tf_dist.airflow.jobs.job_request import JobRequest


class BaseTFJobOperator(TextTemplates):
    """An operator of one job."""

    exact_name: ClassVar[bool] = False
    """Whether the job has its name as it is given, or each try a name of its own."""

    template_fields: Sequence[str] = TEMPLATED
    shown_names: ClassVar[dict[str, str]] = {attribute: name for name, attribute in ATTRIBUTES.items()}
    template_fields_renderers: ClassVar[dict[str, str]] = RENDERERS
    job: Any

    def __init__(
        self,
        *,
        job: str | Mapping[str, Any] | TFJob | None = None,
        image: str | None = None,
        command: Sequence[str] | None = None,
        args: Sequence[str] | None = None,
        workers: int | str | None = None,
        ps: int | str | None = None,
        env_vars: Mapping[str, str | Mapping[str, Any]] | None = None,
        resources: Mapping[str, Any] | None = None,
        priority_class: str | None = None,
        name: str | None = None,
        namespace: str | None = None,
        queue_name: str | None = None,
        overrides: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        kubernetes_conn_id: str | None = DEFAULT_CONNECTION,
        in_cluster: bool | None = None,
        config_file: str | None = None,
        cluster_context: str | None = None,
        driver: str = "auto",
        durable: bool = True,
        wait_for_completion: bool = True,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float | str = 10.0,
        get_logs: bool = True,
        admission_timeout: float | str | None = None,
        startup_timeout_seconds: float | str | None = 600.0,
        fallback: Sequence[Mapping[str, Any]] | None = None,
        on_eviction: str | None = None,
        on_preemption: str | None = None,
        on_finish_action: str = "delete_job",
        on_kill_action: str = "delete_job",
        skip_on_exit_code: int | Container[int] | None = None,
        callbacks: type[TFJobCallbacks] | Sequence[type[TFJobCallbacks]] | None = None,
        job_url: str | None = None,
        tensorboard_url: str | None = None,
        **kwargs: Any,
    ) -> None:
        given = dict(locals())
        # A text stays one, also in a DAG with native templates: a value of a user's must not become a mapping.
        super().__init__(**{**TEXTS, **kwargs})
        for argument, attribute in ATTRIBUTES.items():
            setattr(self, attribute, given[argument])
        # Airflow fills in plain data only.
        self.job = job.to_dict() if isinstance(job, TFJob) else job
        self.companions = job.companions if isinstance(job, TFJob) else ()  # what stands beside it
        if problems := [*operator_problems(self)]:
            raise InvalidJob(problems)
        self.killed = False  # set in a signal handler, when the task is to end
        self.request: JobRequest | None = None  # what is submitted, once it is known
        self.invalid: InvalidJob | None = None  # what is wrong with it, as filled in
        self.result: Mapping[str, Any] = {}  # what the job came to

    @property
    def options(self) -> TaskOptions:
        """The arguments as they are now: read, after their templates were filled in."""
        return read_options(self)

    def access(self) -> ClusterArguments:
        """The cluster that the arguments name."""
        return ClusterArguments.of(vars(self))

    @abstractmethod
    def document(self) -> Any:
        """The job to run."""

    @abstractmethod
    def returned(self, result: Mapping[str, Any]) -> Any:
        """The task's return value."""
