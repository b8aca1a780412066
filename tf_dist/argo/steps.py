"""Steps of a workflow: run a job, wait for admission, clean up."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from hera.shared import BaseMixin, global_config
from hera.workflows import Artifact, Container, EmptyDirVolume, NoneArchiveStrategy, Parameter, Resources, RetryStrategy
from hera.workflows import models as m

from tf_dist import __version__
from tf_dist.argo.arguments import (
    Value,
    as_argument,
    as_list,
    choice_problems,
    merged,
    merged_patch,
    reference_of,
    use_problems,
    value_problems,
)
from tf_dist.argo.job_source import JobSource, named_job
from tf_dist.argo.launcher import contract
from tf_dist.argo.step_arguments import APART, LAUNCHER, ROWS, check_arguments, grace_seconds, launcher_arguments
from tf_dist.core.pipeline.run_options import SWITCH, Face, documented
from tf_dist.errors import InvalidJob

JobFate = Literal["auto", "delete", "suspend", "leave"]

IMAGE: Final = f"tf-dist:{__version__}"
"""The image of the launcher: the image of tf-dist."""

# Argo reports -1 for pods that ended without an exit code, for example evicted pods.
_RETRY: Final = "lastRetry.status == 'Error' || asInt(lastRetry.exitCode) in [-1, 75, 137, 143]"
_NO_IMAGE: Final = type(global_config)().image  # Hera's default image, for scripts
_VOLUME: Final = "tf-dist-out"
_PROGRESS: Final = "workflows.argoproj.io/progress"


def default_retries() -> RetryStrategy:
    """Three retries after evictions, admission timeouts, and losses of the launcher's pod. Failed jobs are not retried.

    Each retry continues the job of the previous try. With an expression, Argo also retries errors (policy Always).
    ``max_duration`` is not set, because Argo counts it from the start of the first try: after a long training, nothing
    would be retried.
    """
    backoff = m.Backoff(duration="30s", factor=m.IntOrString(2))
    return RetryStrategy(limit=3, expression=_RETRY, backoff=backoff)


def _small() -> Resources:
    return Resources(cpu_request="50m", memory_request="128Mi")


def _default_image() -> str:
    """``global_config.image`` if set, as for every container of Hera. Otherwise tf-dist's image, with a warning."""
    if global_config.image != _NO_IMAGE:
        return global_config.image
    warnings.warn(
        f"the step runs the image {IMAGE}, which is not in a registry: build and push it (deploy/Dockerfile), and set "
        f'global_config.image = "REGISTRY/{IMAGE}", or give the step an image',
        stacklevel=4,
    )
    return IMAGE


@dataclass(kw_only=True)
class TFJobStep(Container):
    """Runs one distributed TensorFlow job, shows its logs, and waits for its end. A Hera container.

    All arguments of a Hera container work. ``image`` is the image of the launcher, by default ``global_config.image``.
    An argument of type ``Value`` becomes an input parameter of the step with the argument's name, written with ``-``. A
    value is the default of the parameter, which each use of the step may replace. The argument may also be a
    ``Parameter``, or a text with ``{{…}}``. The other arguments are fixed in the step, but a text may be a
    ``Parameter`` or ``{{…}}``. If the workflow provides ``job``, the step has more input parameters: ``overrides``
    (JSON), ``inputs`` (declarations, see ``tf-dist argo-launch --help``), ``input-values``
    (``{{workflow.parameters.json}}``), ``fallback``, ``on-eviction``, ``on-preemption`` and ``driver``.

    Give steps with different arguments different names, because Argo finds templates by name. InvalidJob lists all
    problems of the arguments.

    :param job: The path of a file, a document or its text, or a ``TFJob``, without ``{{…}}``. Or the whole document as
        a ``Parameter``, or as one ``{{…}}``.
    :param code: A folder that is sent with the job. It is packed into the workflow when the workflow is written.
    :param packages: Python packages that the image of the replicas does not have. Each pod installs them when it
        starts.
    :param overrides: Values of any fields, by path: ``{"spec.runPolicy.backoffLimit": 3}``. The workflow fills in an
        ``Input``, a ``Parameter``, or a text with one ``{{…}}``:
        ``{"spec.…args[1]": Input("steps", int, text="--steps={}")}``.
    :param metric_outputs: Metrics that become output parameters. ``{"best": "accuracy"}`` gives a metric another name.
    :param metrics_artifact: Also write all metrics as an artifact. Needs an artifact repository.
    :param checkpoint_artifact: Write the files of the last checkpoint as an artifact. The step must mount the volume of
        the checkpoints, with ``volumes`` or ``volume_mounts``.
    :param grace_seconds: Seconds for the launcher to stop.
    :param retry_strategy: The retries, by default ``default_retries()``.
    :param resources: The resources of the launcher's container.
    """

    job: JobSource
    code: str = ""
    packages: Sequence[str] | None = None
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
        """Check the arguments, and make the container."""
        BaseMixin.__post_init__(self)  # type: ignore[no-untyped-call]  # set_class_defaults, before all else
        self.overrides = {} if self.overrides is None else self.overrides
        self.job = named_job(self.job, self.name)
        check_arguments(self)
        self.args, inputs = launcher_arguments(self, self.name, as_list(self.args))
        patch = {contract.GRACE: grace_seconds(self)}
        self.image = self.image or _default_image()
        self.command = [*LAUNCHER]  # explicit, because Argo's controller would query the registry
        self.inputs = merged(inputs, self.inputs)
        self.outputs = merged([*self._outputs()], self.outputs)
        self.volumes = [EmptyDirVolume(name=_VOLUME, mount_path=contract.OUT), *as_list(self.volumes)]
        self.annotations = {_PROGRESS: f"0/{self._total()}", **(self.annotations or {})}
        self.pod_spec_patch = merged_patch(patch, self.pod_spec_patch)
        super().__post_init__()  # type: ignore[no-untyped-call]

    def _total(self) -> int:
        return self.total_steps if isinstance(self.total_steps, int) and self.total_steps > 0 else 100

    def _outputs(self) -> Iterator[Parameter | Artifact]:
        """Files on a volume of the pod. They have defaults, because Argo reads them even after a failure."""
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
    """A step that waits until the gang of a job that was submitted elsewhere is admitted.

    Its exit code is 75 after ``timeout``, and 1 if the job can never be admitted. Other arguments are those of a Hera
    container.

    :param job: The name of the job. If another step provides it, ``Parameter(name="job")``, filled in where the step is
        used: ``placed(arguments={"job": started.get_parameter("job")})``.
    :param name: The name of the template.
    :param timeout: The time to wait: ``90s``, ``10m`` or ``1h30m``.
    :param require: ``admitted``, or ``scheduled``: each pod is bound to a node, which is more reliable if admission
        cannot list nodes.
    :param image: The image of tf-dist, by default ``global_config.image``.
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
    # The workflow fills in the name, which must not become an option.
    options = [f"--for={require}", f"--timeout={limit}", "--", what]
    return _container(name, ["tf-dist", "wait"], options, inputs, image, container)


def cleanup_step(*, name: str = "cleanup", all_jobs: bool = False, image: str = "", **container: Any) -> Container:
    """An exit handler that deletes the jobs of its workflow that still run. It finds them by the workflow's uid.

    Also add the step to the ``templates`` of the workflow, because an exit handler is only a name. After ``argo
    terminate``, Argo runs no exit handler, but the launchers stop their jobs. Other arguments are those of a Hera
    container.

    :param name: The name of the template.
    :param all_jobs: Also delete jobs that have ended.
    :param image: The image of tf-dist, by default ``global_config.image``.
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
