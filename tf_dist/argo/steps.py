"""Steps: a job as a Hera container that runs the launcher; waiting for admission; clean-up."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from hera.shared import BaseMixin, global_config
from hera.workflows import Artifact, Container, EmptyDirVolume, NoneArchiveStrategy, Parameter, Resources, RetryStrategy
from hera.workflows import models as m

from tf_dist import __version__
from tf_dist.argo.arguments import Value, as_argument, choice_problems, reference_of, use_problems, value_problems
from tf_dist.argo.job_source import JobSource
from tf_dist.argo.launcher import contract
from tf_dist.argo.merging import as_list, merged, merged_patch
from tf_dist.argo.step_arguments import APART, LAUNCHER, ROWS, check_arguments, grace_seconds, launcher_arguments
from tf_dist.core.pipeline.run_options import SWITCH, Face, documented
from tf_dist.errors import InvalidJob

JobFate = Literal["auto", "delete", "suspend", "leave"]

IMAGE: Final = f"tf-dist:{__version__}"
"""The image of the launcher: that of tf-dist itself."""

# Argo says -1 of a pod that ended without telling an exit code, as evicted ones may.
_RETRY: Final = "lastRetry.status == 'Error' || asInt(lastRetry.exitCode) in [-1, 75, 137, 143]"
_NO_IMAGE: Final = type(global_config)().image  # Hera's own, for scripts
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


def _default_image() -> str:
    """``global_config.image`` where it is set, as for every container of Hera's; else tf-dist's own, and a warning."""
    if global_config.image != _NO_IMAGE:
        return global_config.image
    warnings.warn(
        f"the step runs the image {IMAGE}, which is in no registry: build and push it (deploy/Dockerfile), and set "
        f'global_config.image = "REGISTRY/{IMAGE}", or give the step an image',
        stacklevel=4,
    )
    return IMAGE


@dataclass(kw_only=True)
class TFJobStep(Container):
    """Run one distributed TensorFlow job, show it, and wait for its end.

    Everything that a Hera container takes is taken; ``image`` is the launcher's (else ``global_config.image``, where
    that is set). An argument of type ``Value`` is a value (then it is the default of an input parameter of that name,
    with ``-``, and each use of the step may say another), a ``Parameter`` (an input of the step), or a text with
    ``{{…}}``. The others are part of the step; what is text among them may be a ``Parameter`` or ``{{…}}``, too. Where
    the workflow has the ``job``, there are more inputs: ``overrides`` as JSON; ``inputs``, declarations as ``tf-dist
    argo-launch --help`` shows them, with ``input-values``, ``{{workflow.parameters.json}}``; ``fallback``,
    ``on-eviction``, ``on-preemption`` and ``driver``.

    Give each step with other arguments a ``name`` of its own: Argo knows templates by their names. InvalidJob with all
    problems where an argument cannot be what is given.

    :param job: a file's name, a document or its text, or a ``TFJob``, without any ``{{…}}`` in it; or a parameter, or
        ``{{…}}`` alone, that is a whole document.
    :param code: a folder that goes along; it is packed where the workflow is written, and is a part of it.
    :param overrides: values for paths of the job (``{"spec.runPolicy.backoffLimit": 3}``), and what the workflow fills
        in there (``{"spec.…args[1]": Input("steps", int, text="--steps={}")}``, or a text with one ``{{…}}``).
    :param metric_outputs: metrics that are output parameters of their own (``{"best": "accuracy"}``: by another name).
    :param metrics_artifact: all metrics as an artifact, too (needs an artifact repository).
    :param checkpoint_artifact: the files of the last checkpoint as an artifact: only from the ``volumes`` and
        ``volume_mounts`` of the step, which must have the one that the replicas write to.
    :param grace_seconds: how long the launcher has to stop.
    :param retry_strategy: see ``default_retries``.
    :param resources: of the launcher's container.
    """

    job: JobSource
    code: str = ""
    workers: Value = None
    ps: Value = None
    queue_name: Value = None
    priority_class: Value = None
    job_image: Value = None
    model_dir: Value = None
    total_steps: Value = None
    admission_timeout: Value = None
    startup_timeout: Value = contract.STARTUP_TIMEOUT
    run_timeout: Value = None
    fallback: Sequence[Mapping[str, Any]] | str | Parameter | None = None
    on_eviction: str | Parameter | None = None
    on_preemption: str | Parameter | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    metric_outputs: Sequence[str] | Mapping[str, str] = ()
    metrics_artifact: bool = False
    checkpoint_artifact: bool = False
    on_term: JobFate | str | Parameter = "auto"
    on_suspend: str | Parameter = "suspend"
    grace_seconds: int = 60
    reattach: bool = True
    driver: str | Parameter = "auto"
    job_namespace: str | Parameter = ""
    retry_strategy: RetryStrategy | m.RetryStrategy | None = field(default_factory=default_retries)
    resources: Resources | m.ResourceRequirements | None = field(default_factory=_small)

    def __post_init__(self) -> None:
        """Fill in what the container is."""
        BaseMixin.__post_init__(self)  # type: ignore[no-untyped-call]  # set_class_defaults, before all else
        self.overrides = {} if self.overrides is None else self.overrides
        check_arguments(self)
        self.args, inputs = launcher_arguments(self, self.name, as_list(self.args))
        patch = {contract.GRACE: grace_seconds(self)}
        self.image = self.image or _default_image()
        self.command = [*LAUNCHER]  # always said: else Argo's controller asks the registry
        self.inputs = merged(inputs, self.inputs)
        self.outputs = merged([*self._outputs()], self.outputs)
        self.volumes = [EmptyDirVolume(name=_VOLUME, mount_path=contract.OUT), *as_list(self.volumes)]
        self.annotations = {_PROGRESS: f"0/{self._total()}", **(self.annotations or {})}
        self.pod_spec_patch = merged_patch(patch, self.pod_spec_patch)
        super().__post_init__()  # type: ignore[no-untyped-call]

    def _total(self) -> int:
        return self.total_steps if isinstance(self.total_steps, int) and self.total_steps > 0 else 100

    def _outputs(self) -> Iterator[Parameter | Artifact]:
        """Files on a volume of the pod, each with a default: Argo looks for them after a failure, too."""
        for name, default in contract.OUTPUTS.items():
            yield _output(name, name, default)
        named = self.metric_outputs
        for name, metric in (named if isinstance(named, Mapping) else dict(zip(named, named, strict=True))).items():
            yield _output(name, contract.metric_file(metric), "")
        if self.metrics_artifact:
            path = f"{contract.OUT}/metrics"
            yield Artifact(name="metrics-json", path=path, archive=NoneArchiveStrategy(), optional=True)
        if self.checkpoint_artifact:
            yield Artifact(name=contract.CHECKPOINT, path=f"{contract.OUT}/{contract.CHECKPOINT}", optional=True)


_OTHERS: Final = {name: row for name, row in ROWS.items() if name not in APART}
TFJobStep.__doc__ = f"{TFJobStep.__doc__}{documented(_OTHERS, Face.STEP)}"


def _output(name: str, file: str, default: str) -> Parameter:
    return Parameter(name=name, value_from=m.ValueFrom(path=f"{contract.OUT}/{file}", default=default))


def wait_admitted_step(
    job: str | Parameter,
    *,
    name: str = "wait-admitted",
    timeout: Value = "1h",
    require: Literal["admitted", "scheduled"] | str = "admitted",
    image: str = "",
    **container: Any,
) -> Container:
    """Wait until the gang of a job, that was submitted elsewhere, is admitted and has its nodes.

    ``job``: its name, or ``Parameter(name="job")`` where it is an output of another step, which is known only where
    this one is used: ``placed(arguments={"job": started.get_parameter("job")})``. Ends with 75 when it has none in
    time, with 1 when it never will. ``require``: ``scheduled`` waits until each of its pods has its node, which is
    surer where admission sees no nodes. ``container``: arguments of a Hera container.
    """
    given, instead = reference_of(job), 'write Parameter(name="job")'
    problems = [*use_problems("job", given, step="placed", instead=instead)] if isinstance(given, str) else []
    problems += [
        *choice_problems("require", require, ("admitted", "scheduled")),
        *value_problems("timeout", timeout, ROWS["run_timeout"]),
    ]
    if problems:
        raise InvalidJob(problems)
    inputs: list[Parameter] = []
    what, limit = as_argument("job", job, inputs), as_argument("timeout", timeout, inputs)
    # After "--" nothing is an option: the workflow fills in the name.
    options = [f"--for={require}", f"--timeout={limit}", "--", what]
    return _container(name, ["tf-dist", "wait"], options, inputs, image, container)


def cleanup_step(*, name: str = "cleanup", all_jobs: bool = False, image: str = "", **container: Any) -> Container:
    """Delete the jobs of this workflow that still run (``all_jobs``: all of them): for an exit handler.

    It needs no arguments: jobs are known by the workflow's uid. Put it into the workflow's ``templates`` as well: an
    exit handler is named only. Argo runs none after ``argo terminate``; the launcher frees what it holds by itself.
    """
    if problems := [*SWITCH.problems("all_jobs", all_jobs, lambda _: False)]:
        raise InvalidJob(problems)
    options = ["--workflow-uid={{workflow.uid}}", *(["--all"] if all_jobs else [])]
    return _container(name, ["tf-dist", "argo-clean"], options, [], image, container)


def _container(
    name: str, command: list[str], args: list[str], inputs: list[Parameter], image: str, more: dict[str, Any]
) -> Container:
    given = {"resources": _small(), **more}
    own = merged(inputs, given.pop("inputs", None))
    return Container(name=name, image=image or _default_image(), command=command, args=args, inputs=own, **given)
