"""Steps: a job as a Hera container that runs the launcher; waiting for admission; clean-up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from hera.workflows import Artifact, Container, EmptyDirVolume, NoneArchiveStrategy, Parameter, Resources, RetryStrategy
from hera.workflows import models as m

from tf_dist import __version__
from tf_dist.argo.job_source import Input, JobSource, document_text, is_document, is_reference, refuse_references
from tf_dist.client.launch import contract
from tf_dist.core.api.fieldpath import format_field_path, parse_field_path
from tf_dist.core.api.overrides import Override, parse_overrides
from tf_dist.core.dialects import policy_annotations
from tf_dist.core.dialects.common_annotations import annotation_path
from tf_dist.core.steps.inputs import input_overrides
from tf_dist.errors import InvalidJob, Problem

OnTerm = Literal["auto", "delete", "suspend", "leave"]
Value = str | int | Parameter | None

IMAGE: Final = f"tf-dist:{__version__}"
"""The image of the launcher: that of tf-dist itself."""

# Argo says -1 of a pod that ended without telling an exit code, as evicted ones may.
_RETRY: Final = "lastRetry.status == 'Error' || asInt(lastRetry.exitCode) in [-1, 75, 137, 143]"
_WAY: Final = 'write overrides={"spec.…args[1]": Input("steps", int, minimum=1, text="--steps={}")}'
_VOLUME: Final = "tf-dist-out"
_PROGRESS: Final = "workflows.argoproj.io/progress"


def default_retries() -> RetryStrategy:
    """Three more tries, for what is worth one: evicted, no place in time, the launcher's pod lost. Never a failed job.

    Each try goes on with the job of the last one; an expression makes Argo look at errors, too (policy Always).
    There is no ``max_duration``: Argo counts it from the start of the first try, so after an hour of training nothing
    would be tried again, and a try that goes on with the job would be ended by it.
    """
    backoff = m.Backoff(duration="30s", factor=m.IntOrString(2))
    return RetryStrategy(limit=3, expression=_RETRY, backoff=backoff)


def _small() -> Resources:
    return Resources(cpu_request="50m", memory_request="128Mi")


@dataclass(kw_only=True)
class TFJobStep(Container):
    """Run one distributed TensorFlow job, show it, and wait for its end.

    Everything that a Hera container takes is taken; ``image`` is the launcher's. An argument of type ``Value`` is a
    value (then it is the default of an input parameter of that name, with ``-``, and each use of the step may say
    another), a ``Parameter`` (an input of the step), or a text with ``{{…}}``. The others are part of the step. Where
    the workflow has the ``job``, there are two inputs more: ``inputs``, declarations as ``tf-dist argo-launch --help``
    shows them, and ``input-values``, ``{{workflow.parameters.json}}``.

    Give each step with other arguments a ``name`` of its own: Argo knows templates by their names.

    :param job: a file's name, a document or its text, or a ``TFJob``, without any ``{{…}}`` in it; or a parameter, or
        ``{{…}}`` alone, that is a whole document.
    :param workers: how many.
    :param ps: how many parameter servers.
    :param queue: the gang's queue.
    :param priority_class: of the gang.
    :param job_image: of the containers that train.
    :param model_dir: the folder that replicas find in ``$TF_DIST_MODEL_DIR``; the same at each try, so that a
        checkpoint is found again.
    :param total_steps: at which step the training is done, for the progress.
    :param pending_timeout: the former name of ``admission_timeout``.
    :param admission_timeout: ``10m``, ``2h``: the step ends with 75 when the job has no place by then; with
        ``fallback``, those are tried as well from then on, for as long again.
    :param fallback: what the job may be instead, in order: ``[{"workers": 4}, {"queue_name": "spot"}]``. The gang
        queues once, with all of them.
    :param on_eviction: what follows when pods are taken away: ``restart`` (as the job says), ``requeue``, ``fail`` or
        ``fallback``.
    :param on_preemption: the same, when the gang is preempted.
    :param startup_timeout: the step ends with 1 when the job is admitted and does not run by then (an image that
        cannot be pulled).
    :param run_timeout: the step ends with 1 when the job is not done by then.
    :param overrides: values for places of the job (``{"spec.runPolicy.backoffLimit": 3}``), and what the workflow fills
        in there (``{"spec.…args[1]": Input("steps", int, text="--steps={}")}``).
    :param changes: ``PATH=VALUE``, as for ``tf-dist run --set``.
    :param metric_outputs: metrics that are output parameters of their own.
    :param metrics_artifact: all metrics as an artifact, too (needs an artifact repository).
    :param on_term: what becomes of the job when the launcher is asked to stop: ``auto`` deletes it, or leaves it where
        the step will be tried again.
    :param grace_seconds: how long the launcher has for that.
    :param drive: ``auto``: a controller in the cluster where one lives, else the step itself; or ``controller`` or
        ``inline`` in any case.
    :param job_namespace: for a job elsewhere, which then has no owner.
    :param retry_strategy: see ``default_retries``.
    :param resources: of the launcher's container.
    """

    job: JobSource
    workers: Value = None
    ps: Value = None
    queue: Value = None
    priority_class: Value = None
    job_image: Value = None
    model_dir: Value = None
    total_steps: Value = None
    pending_timeout: Value = None
    admission_timeout: Value = None
    fallback: Sequence[Mapping[str, Any]] | None = None
    on_eviction: str | None = None
    on_preemption: str | None = None
    startup_timeout: Value = contract.STARTUP_TIMEOUT
    run_timeout: Value = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    changes: Sequence[str] = ()
    metric_outputs: Sequence[str] = ()
    metrics_artifact: bool = False
    on_term: OnTerm = "auto"
    grace_seconds: int = 60
    drive: Literal["auto", "inline", "controller"] = "auto"
    job_namespace: str = ""
    retry_strategy: RetryStrategy | None = field(default_factory=default_retries)
    resources: Resources | None = field(default_factory=_small)

    def __post_init__(self) -> None:
        """Fill in what the container is."""
        self._check()
        own: list[Parameter] = []
        self.image = self.image or IMAGE
        self.command = ["tf-dist", "argo-launch"]  # always said: else Argo's controller asks the registry
        self.args = [*self._options(own), *_list(self.args)]
        self.inputs = [*own, *_list(self.inputs)]
        self.outputs = [*self._outputs(), *_list(self.outputs)]
        self.volumes = [EmptyDirVolume(name=_VOLUME, mount_path=contract.OUT), *_list(self.volumes)]
        self.annotations = {_PROGRESS: f"0/{self._total()}", **(self.annotations or {})}
        if self.pod_spec_patch is None:
            self.pod_spec_patch = json.dumps({"terminationGracePeriodSeconds": self.grace_seconds})
        super().__post_init__()  # type: ignore[no-untyped-call]

    def _check(self) -> None:
        """InvalidJob for what would be parsed once the workflow has filled it in, and for inputs that say nothing."""
        for change in self.changes:
            refuse_references("changes", change, _WAY)
        for path, note in self._policies():
            refuse_references(path, note, "write the value itself: it becomes a part of the job")
        for path, value in self.overrides.items():
            text = json.dumps(value.at(path).document() if isinstance(value, Input) else value)
            refuse_references(f"overrides[{path!r}]", f"{path}={text}", _WAY)
        if not isinstance(self.grace_seconds, int):
            raise InvalidJob([Problem("grace_seconds", f"{self.grace_seconds!r} is no whole number of seconds")])
        problems = [problem for path, one in self._inputs() for problem in one.problems(path)]
        if problems:
            raise InvalidJob(problems)

    def _policies(self) -> Iterator[tuple[str, str]]:
        """The paths and values of the annotations that the policies are; InvalidJob."""
        found = policy_annotations(
            fallback=self.fallback,
            on_eviction=self.on_eviction,
            on_preemption=self.on_preemption,
            admission_timeout=self.admission_timeout or self.pending_timeout,
        )
        return ((format_field_path(annotation_path(key)), value) for key, value in found.items())

    def _inputs(self) -> Iterator[tuple[str, Input]]:
        return ((path, value) for path, value in self.overrides.items() if isinstance(value, Input))

    def _whole(self) -> str | Parameter:
        """The job's text, found right with all that is known of what will be changed in it; or who has it."""
        if isinstance(self.job, Parameter) or not is_document(self.job):
            return self.job if isinstance(self.job, Parameter) else str(self.job)
        fixed = [
            Override(parse_field_path(path), value)
            for path, value in self.overrides.items()
            if not isinstance(value, Input)
        ]
        usual = [
            override
            for path, one in self._inputs()
            for override in input_overrides([one.at(path)], {one.name: one.usual})
        ]
        policies = [Override(parse_field_path(path), value) for path, value in self._policies()]
        return document_text(self.job, [*parse_overrides(self.changes), *fixed, *usual, *policies], way=_WAY)

    def _options(self, own: list[Parameter]) -> Iterator[str]:
        """The launcher's command line; the inputs that it needs are added to ``own``."""
        arguments: tuple[tuple[str, str, Value], ...] = (
            ("job", "job", self._whole()),
            ("workers", "workers", self.workers),
            ("ps", "ps", self.ps),
            ("queue", "queue", self.queue),
            ("priority-class", "priority-class", self.priority_class),
            ("image", "job-image", self.job_image),
            ("model-dir", "model-dir", self.model_dir),
            ("total-steps", "total-steps", self.total_steps),
            ("pending-timeout", "pending-timeout", self.admission_timeout or self.pending_timeout),
            ("startup-timeout", "startup-timeout", self.startup_timeout),
            ("timeout", "run-timeout", self.run_timeout),
        )
        for option, name, value in arguments:
            yield f"--{option}={as_argument(name, value, own)}"
        yield from (f"--set={change}" for change in self.changes)
        yield from (f"--set-string={path}={value}" for path, value in self._policies())
        for path, value in self.overrides.items():
            if isinstance(value, Input):
                yield f"--input={json.dumps(value.at(path).document())}"
                yield f"--set-input={value.name}={{{{inputs.parameters.{value.name}}}}}"
                own += [value.parameter()] if value.name not in {one.name for one in own} else []
            else:
                yield f"--set-json={path}={json.dumps(value)}"
        if not is_document(self.job):
            yield f"--input={as_argument('inputs', None, own)}"
            yield f"--set-inputs={as_argument('input-values', None, own)}"
        yield from ("--workflow={{workflow.name}}", "--workflow-uid={{workflow.uid}}", "--node={{node.name}}")
        if self.retry_strategy is not None:
            yield "--retry={{retries}}"
            yield f"--retries={self._limit(self.retry_strategy)}"
        yield f"--drive={self.drive}"
        yield f"--on-term={self.on_term}"
        yield f"--grace={self.grace_seconds}s"
        yield f"--out={contract.OUT}"
        if self.job_namespace:
            yield f"--namespace={self.job_namespace}"

    def _limit(self, strategy: RetryStrategy) -> str:
        """Without a limit there is always another try."""
        limit = getattr(strategy.limit, "__root__", strategy.limit)
        return "1000000" if limit is None else str(getattr(limit, "root", limit))

    def _total(self) -> int:
        return self.total_steps if isinstance(self.total_steps, int) and self.total_steps > 0 else 100

    def _outputs(self) -> Iterator[Parameter | Artifact]:
        """Files on a volume of the pod, each with a default: Argo looks for them after a failure, too."""
        for name, default in contract.OUTPUTS.items():
            yield _output(name, name, default)
        for name in self.metric_outputs:
            yield _output(name, f"{contract.METRIC}{name}", "")
        if self.metrics_artifact:
            path = f"{contract.OUT}/metrics"
            yield Artifact(name="metrics-json", path=path, archive=NoneArchiveStrategy(), optional=True)


def as_argument(name: str, value: Value, own: list[Parameter]) -> str:
    """What stands on the command line for a value."""
    if is_reference(value):
        return str(value)
    parameter = value if isinstance(value, Parameter) else Parameter(name=name, default=_plain(value))
    own.append(parameter)
    return f"{{{{inputs.parameters.{parameter.name}}}}}"


def _plain(value: str | int | None) -> str:
    return "" if value is None else str(value)


def _output(name: str, file: str, default: str) -> Parameter:
    return Parameter(name=name, value_from=m.ValueFrom(path=f"{contract.OUT}/{file}", default=default))


def _list(value: Any) -> list[Any]:
    """Hera takes one, several, or none."""
    if value is None:
        return []
    several = isinstance(value, Iterable) and not isinstance(value, str | dict)
    return list(value) if several else [value]


def wait_admitted_step(
    job: str | Parameter,
    *,
    name: str = "wait-admitted",
    timeout: Value = "1h",
    require: Literal["admitted", "scheduled"] = "admitted",
    image: str = IMAGE,
    **container: Any,
) -> Container:
    """Wait until the gang of a job, that was submitted elsewhere, is admitted and has its nodes.

    ``job``: its name, or a reference to an output that is one. Ends with 75 when it has none in time, with 1 when it
    never will. ``require``: ``scheduled`` waits until each of its pods has its node, which is surer where admission
    sees no nodes. ``container``: arguments of a Hera container.
    """
    if require not in ("admitted", "scheduled"):
        raise InvalidJob([Problem("require", f"{require!r} is neither admitted nor scheduled")])
    inputs: list[Parameter] = []
    what, limit = as_argument("job", job, inputs), as_argument("timeout", timeout, inputs)
    # After "--" nothing is an option: the workflow fills in the name.
    options = [f"--for={require}", f"--timeout={limit}", "--", what]
    return _container(name, ["tf-dist", "wait"], options, inputs, image, container)


def cleanup_step(*, name: str = "cleanup", all_jobs: bool = False, image: str = IMAGE, **container: Any) -> Container:
    """Delete the jobs of this workflow that still run (``all_jobs``: all of them): for an exit handler.

    It needs no arguments: jobs are known by the workflow's uid. Put it into the workflow's ``templates`` as well: an
    exit handler is named only. Argo runs none after ``argo terminate``; the launcher frees what it holds by itself.
    """
    options = ["--workflow-uid={{workflow.uid}}", *(["--all"] if all_jobs else [])]
    return _container(name, ["tf-dist", "argo-clean"], options, [], image, container)


def _container(
    name: str, command: list[str], args: list[str], inputs: list[Parameter], image: str, more: dict[str, Any]
) -> Container:
    given = {"resources": Resources(cpu_request="50m", memory_request="128Mi"), **more}
    return Container(name=name, image=image, command=command, args=args, inputs=[*inputs], **given)
