"""Tasks about a named job: the common base of sensors and of operators that change a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tf_dist.airflow.hooks.kubernetes_connection import ClusterArguments
from tf_dist.airflow.hooks.tfjob import TFJobHook
from tf_dist.airflow.task_options import DEFAULT_CONNECTION, OPTIONS, attribute_problems
from tf_dist.airflow.templates import TEXTS, TextTemplates
from tf_dist.airflow.version_compat import AirflowFailException
from tf_dist.core.pipeline.run_options import choice_problems, job_name_problems
from tf_dist.errors import InvalidJob, Problem

if TYPE_CHECKING:
    from tf_dist.client.client import Client


class NamedJobTask(TextTemplates):
    """A task about one job. Subclasses set their own arguments before they call this ``__init__``, which checks them.

    :param job_name: NAME, ``tfjob/NAME`` or ``vcjob/NAME``. (templated)
    :param namespace: The namespace of the job, by default that of the connection. (templated)
    :param kubernetes_conn_id: See ``TFJobOperator``, also for ``in_cluster``, ``config_file`` and ``cluster_context``.
    """

    template_fields: Sequence[str] = ("job_name", "namespace", "kubernetes_conn_id", "config_file", "cluster_context")
    checked: ClassVar[Sequence[str]] = (
        "namespace",
        "kubernetes_conn_id",
        "in_cluster",
        "config_file",
        "cluster_context",
    )
    """Arguments that are checked by their rows in ``task_options``."""
    choices: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Arguments with a fixed set of values."""

    def __init__(
        self,
        *,
        job_name: str,
        namespace: str | None = None,
        kubernetes_conn_id: str | None = DEFAULT_CONNECTION,
        in_cluster: bool | None = None,
        config_file: str | None = None,
        cluster_context: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{**TEXTS, **kwargs})
        self.job_name = job_name
        self.namespace = namespace
        self.kubernetes_conn_id = kubernetes_conn_id
        self.in_cluster = in_cluster
        self.config_file = config_file
        self.cluster_context = cluster_context
        if problems := [*self._problems()]:
            raise InvalidJob(problems)

    def _problems(self) -> Iterator[Problem]:
        yield from self.unfilled
        yield from job_name_problems(self.job_name, self.later)
        yield from attribute_problems(self, {name: OPTIONS[name] for name in self.checked})
        for name, words in self.choices.items():
            yield from choice_problems(name, getattr(self, name), words)

    def refuse_problems(self) -> None:
        """Raise AirflowFailException if rendered templates made arguments invalid, because no retry can succeed."""
        if problems := [*self._problems()]:
            raise AirflowFailException(str(InvalidJob(problems)))

    def client(self) -> Client:
        """A client of the cluster and namespace that the arguments name. The caller closes it."""
        return TFJobHook.of(ClusterArguments.of(vars(self))).client(self.namespace)
