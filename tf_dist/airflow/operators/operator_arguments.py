"""Arguments of the operator: their types, their problems, and the job that they describe.

The meaning, the check and the default of each argument are in its row of ``task_options``.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tf_dist.airflow.callbacks import TFJobCallbacks
from tf_dist.airflow.hooks.kubernetes_connection import ClusterArguments
from tf_dist.airflow.jobs.job_request import NO_CHANGES, JobRequest, is_document_text, job_request, job_type_problem
from tf_dist.airflow.task_options import (
    ATTRIBUTES,
    DEFAULT_CONNECTION,
    OPTIONS,
    RENDERERS,
    TEMPLATED,
    TaskOptions,
    attribute_problems,
    read_options,
)
from tf_dist.airflow.templates import TEXTS, TextTemplates
from tf_dist.airflow.version_compat import TASKS_CHOOSE_NATIVE, AirflowFailException, conf
from tf_dist.client.tfjob import TFJob
from tf_dist.errors import InvalidJob, Problem


class BaseTFJobOperator(TextTemplates):
    """Base class of operators that create one job."""

    exact_name: ClassVar[bool] = False
    """Whether the job has exactly the given name. False: the job of each try has its own name."""

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
        code: str | None = None,
        packages: Sequence[str] | None = None,
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
        # Text remains text, even in a DAG with native templates: a user's value must not become a mapping.
        super().__init__(**{**TEXTS, **kwargs})
        for argument, attribute in ATTRIBUTES.items():
            setattr(self, attribute, given[argument])
        # Airflow renders templates only in plain data.
        self.job = job.to_dict() if isinstance(job, TFJob) else job
        self.companions = job.companions if isinstance(job, TFJob) else ()  # the companion objects of its file
        if problems := [*operator_problems(self)]:
            raise InvalidJob(problems)
        self.killed = False  # a signal handler sets this when the task must end
        self.has_job = False  # whether the job and its links exist
        self.request: JobRequest | None = None  # the request to submit, after rendering
        self.invalid: InvalidJob | None = None  # the problems of the request, after rendering
        self.result: Mapping[str, Any] = {}  # the result of the job

    @property
    def options(self) -> TaskOptions:
        """The current arguments, parsed."""
        return read_options(self)

    def access(self) -> ClusterArguments:
        """The arguments that name the cluster."""
        return ClusterArguments.of(vars(self))

    def document(self) -> Any:
        """The document to run: ``job``, or a document made from the other arguments. Subclasses may change it."""
        if self.job is not None:
            return self.job
        options = self.options
        made = TFJob(
            image=options.image,
            command=options.command or (),
            args=options.args or (),
            packages=options.packages,
            workers=1 if options.workers is None else options.workers,
            ps=options.ps or 0,
            env_vars=options.env_vars,
            resources=options.resources,
            priority_class=options.priority_class,
        )
        return made.to_dict()

    def read_request(self, render: Callable[[Any], Any]) -> JobRequest:
        """The request to submit. Raises InvalidJob with all problems. ``render`` renders the templates of a file."""
        problems = [*self.unfilled, *operator_problems(self)]
        # A relative path starts at the folder of the DAG, or at a folder of its template_searchpath.
        folders = [Path.cwd()]
        if self.has_dag():
            searched: Any = self.dag.template_searchpath or ()
            more = [searched] if isinstance(searched, str) else searched
            folders = [Path(one) for one in (self.dag.folder, *more)]
            if not TASKS_CHOOSE_NATIVE and self.dag.render_template_as_native_obj:
                what = "is set, but this Airflow cannot render the fields of a single task as text"
                problems.append(Problem("render_template_as_native_obj", what, "leave it out of the DAG"))
        if problems:
            raise InvalidJob(problems)
        options = self.options
        return job_request(
            self.document(),
            folders,
            render,
            companions=self.companions,
            changes=NO_CHANGES if self.job is None else options.changes(),
            overrides=options.overrides or {},
            code=options.code,
            queue_name=options.queue_name,
            name=options.name,
            default_name=self.task_id,
        )

    def returned(self, result: Mapping[str, Any]) -> Any:
        """The return value of the task: the result of the job."""
        return dict(result)


def task_failure(error: InvalidJob) -> AirflowFailException:
    """The failure of the task, with all problems. No retry can succeed."""
    return AirflowFailException(f"the job cannot be run:\n{error}")


def operator_problems(operator: Any) -> Iterator[Problem]:
    """All problems of the arguments. Values that are not known yet are checked later."""
    if operator.job is None and not operator.image:
        yield Problem("image", "no job is given", "give job, or image and command")
    if operator.job == "":
        yield Problem("job", "it is empty", "name a file, or leave it out and give image and command")
    if isinstance(operator.job, str) and is_document_text(operator.job):
        hint = "pass the dict itself (job=task.output); TFJob.from_yaml reads a text"
        yield Problem("job", "is the text of a document, not the path of a file", hint)
    if not (operator.job is None or isinstance(operator.job, str | Mapping) or operator.later(operator.job)):
        yield job_type_problem(operator.job)
    wrong = [*attribute_problems(operator, OPTIONS)]
    yield from wrong
    for name in ("command", "args") if operator.job is not None else ():
        given = getattr(operator, name)
        if given is not None and not operator.later(given) and not given:
            what = "it is empty, and would not change the job"
            yield Problem(name, what, "leave it out, or give the job without it")
    try:
        read_options(operator).policies(open_=operator.later)
    except InvalidJob as error:
        said = {one.path for one in wrong}  # the policies report an invalid time again
        yield from (one for one in error.problems if one.path not in said)
