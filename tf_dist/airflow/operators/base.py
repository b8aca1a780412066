"""Fields of the operator that building its job and running its task read; ``tfjob`` fills them in."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from tf_dist.airflow.callbacks import TFJobCallbacks
from tf_dist.airflow.hooks.kubernetes_connection import ClusterArguments

if TYPE_CHECKING:
    from tf_dist.airflow.jobs.job_request import JobRequest
    from tf_dist.client.yaml_files import YamlDocument


class BaseTFJobOperator(BaseOperator):
    """An operator of one job. What each argument means is said in ``TFJobOperator``."""

    exact_name: ClassVar[bool] = False
    """Whether the job has its name as it is given, or each try a name of its own."""

    job: str | Mapping[str, Any] | None
    image: str | None
    command: Sequence[str] | None
    args: Sequence[str] | None
    workers: int | str | None
    ps: int | str | None
    env_vars: Mapping[str, str | Mapping[str, Any]] | None
    job_resources: Mapping[str, Any] | None
    priority_class: str | None
    name: str | None
    namespace: str | None
    queue_name: str | None
    overrides: Mapping[str, Any] | None
    labels: Mapping[str, str] | None
    annotations: Mapping[str, str] | None
    driver: str
    durable: bool
    wait_for_completion: bool
    deferrable: bool
    poll_interval: float
    get_logs: bool
    admission_timeout: float | None
    startup_timeout_seconds: float | None
    fallback: Sequence[Mapping[str, Any]] | None
    on_eviction: str | None
    on_preemption: str | None
    on_finish_action: str
    on_kill_action: str
    skip_on_exit_code: int | Container[int] | None
    callbacks: type[TFJobCallbacks] | Sequence[type[TFJobCallbacks]] | None
    job_url: str | None
    tensorboard_url: str | None

    companions: tuple[YamlDocument, ...]
    """What stands beside a ``TFJob`` that was given as ``job``."""
    killed: bool
    """Set in a signal handler, when the task is to end."""
    request: JobRequest | None
    """What is submitted, once it is known."""
    result: Mapping[str, Any]
    """What the job came to."""

    @abstractmethod
    def access(self) -> ClusterArguments:
        """The cluster that the arguments name."""

    @abstractmethod
    def document(self) -> Any:
        """The job to run."""

    @abstractmethod
    def returned(self, result: Mapping[str, Any]) -> Any:
        """The task's return value."""
