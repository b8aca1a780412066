"""Arguments of a step that runs a job: what is wrong with them, and the launcher's command line that they become."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Final, Protocol

from hera.workflows import (
    Artifact,
    ConfigMapVolume,
    DownwardAPIVolume,
    Parameter,
    ProjectedVolume,
    Resources,
    RetryStrategy,
    SecretVolume,
)
from hera.workflows import models as m

from tf_dist.argo.arguments import (
    Value,
    as_argument,
    as_fixed,
    cache_key_problems,
    choice_problems,
    is_given_later,
    is_lone_reference,
    is_reference,
    output_problems,
    reference_of,
    reference_problems,
    reference_text,
    value_problems,
)
from tf_dist.argo.job_source import (
    FilledIn,
    Input,
    JobSource,
    check_readable,
    document_text,
    filled_reference,
    fits,
    has_fallbacks,
    is_document,
    is_script,
)
from tf_dist.argo.merging import as_list, as_parameters, patched_value
from tf_dist.client.launch import contract
from tf_dist.client.launch.launcher_arguments import AUTO, ON_SUSPEND
from tf_dist.core.api import names
from tf_dist.core.api.fieldpath import parse_field_path
from tf_dist.core.api.overrides import Override
from tf_dist.core.dialects import policy_annotations
from tf_dist.core.dialects.common_annotations import annotation_path
from tf_dist.core.steps.adoption import DriverChoice
from tf_dist.core.steps.inputs import input_overrides
from tf_dist.core.steps.job_arguments import argument_problems
from tf_dist.core.steps.shutdown import OnTerm
from tf_dist.errors import InvalidJob, Problem

WAY: Final = 'write overrides={"spec.…args[1]": Input("steps", int, minimum=1, text="--steps={}")}'

_VALUES: Final = (
    "workers",
    "ps",
    "queue_name",
    "priority_class",
    "job_image",
    "model_dir",
    "total_steps",
    "admission_timeout",
    "startup_timeout",
    "run_timeout",
)
"""Arguments that are input parameters of the step."""
_OPEN: Final = ("fallback", "on_eviction", "on_preemption", "driver")
"""Those that are so where the workflow has the job."""
LAUNCHER: Final = ["tf-dist", "argo-launch"]
_LONGEST_GRACE: Final = 10**9
_OPTIONS: Final = {"job_image": "image"}
_POLICIES: Final = {
    names.FALLBACK: "fallback",
    names.ON_EVICTION: "on_eviction",
    names.ON_PREEMPTION: "on_preemption",
    names.ADMISSION_TIMEOUT: "admission_timeout",
}


# Arguments that are objects of Hera's: their types, what they are called, and an example.
_OBJECTS: Final[Mapping[str, tuple[tuple[type, ...], str, str]]] = {
    "retry_strategy": ((RetryStrategy, m.RetryStrategy), "a RetryStrategy", "RetryStrategy(limit=3)"),
    "resources": ((Resources, m.ResourceRequirements), "a Resources", 'Resources(cpu_request="100m")'),
    "memoize": ((m.Memoize,), "a Memoize", 'models.Memoize(key=…, cache=…, max_age="1h")'),
}
_PUTS: Final = (Parameter, m.Parameter, Artifact, m.Artifact)
_PRIVATE_VOLUMES: Final = (SecretVolume, ConfigMapVolume, ProjectedVolume, DownwardAPIVolume)
_TOKENS: Final = tuple(f"{folder}/secrets/kubernetes.io/serviceaccount" for folder in ("/var/run", "/run"))


class StepFields(Protocol):
    """The fields of a step that its arguments are; ``TFJobStep`` says what each means."""

    job: JobSource
    command: Any
    admission_timeout: Value
    fallback: Sequence[Mapping[str, Any]] | str | Parameter | None
    on_eviction: str | Parameter | None
    on_preemption: str | Parameter | None
    overrides: Mapping[str, Any]
    inputs: Any
    outputs: Any
    labels: Any
    annotations: Any
    metric_outputs: Sequence[str] | Mapping[str, str]
    metrics_artifact: bool
    checkpoint_artifact: bool
    volumes: Any
    volume_mounts: Any
    on_term: OnTerm | str | Parameter
    on_suspend: str | Parameter
    grace_seconds: int
    reattach: bool
    driver: str | Parameter
    job_namespace: str | Parameter
    retry_strategy: RetryStrategy | m.RetryStrategy | None
    resources: Resources | m.ResourceRequirements | None
    memoize: m.Memoize | None
    pod_spec_patch: Any


def check_arguments(step: StepFields) -> None:
    """InvalidJob with all that is wrong with the arguments, the job itself aside."""
    problems = [*_type_problems(step), *_value_problems(step), *_grace_problems(step)]
    unread = [*_problems_of(lambda: check_readable(step.job)), *_shape_problems(step.overrides)]
    if not unread:
        found = [*_override_problems(step)]
        wrong = {one.path for one in problems}
        problems += [*found, *(() if found or "inputs" in wrong else _name_problems(step))]
        # A time that is none is also no time for the fallbacks.
        problems += [one for one in _problems_of(lambda: _known_policies(step)) if one.path not in wrong]
    if problems or unread:
        raise InvalidJob([*problems, *unread])


def _problems_of(check: Callable[[], object]) -> list[Problem]:
    try:
        check()
    except InvalidJob as error:
        return list(error.problems)
    return []


def _type_problems(step: StepFields) -> Iterator[Problem]:
    """What Hera, which checks nothing, would keep until the workflow is built, or pass on to Argo."""
    for name, (types, what, example) in _OBJECTS.items():
        given = getattr(step, name)
        if given is not None and not isinstance(given, types):
            yield Problem(name, f"must be {what}, not {type(given).__name__}", f"write {example}")
    if isinstance(step.retry_strategy, RetryStrategy | m.RetryStrategy):
        yield from argument_problems("workers", _retry_limit(step.retry_strategy), is_reference, "retry_strategy.limit")
    for name in ("reattach", "metrics_artifact", "checkpoint_artifact"):
        yield from argument_problems(name, getattr(step, name), later=lambda _: False)
    for name in ("labels", "annotations"):
        yield from argument_problems(name, getattr(step, name), is_reference)
    for name in ("inputs", "outputs"):
        for one in as_list(getattr(step, name)):
            if not isinstance(one, (*_PUTS, dict) if name == "inputs" else _PUTS):
                what = f"must be a Parameter, an Artifact, or several, not {type(one).__name__}"
                yield Problem(name, what, 'write [Parameter(name="steps")]')
                break


def _retry_limit(strategy: RetryStrategy | m.RetryStrategy) -> Any:
    return getattr(strategy.limit, "root", strategy.limit)


def _value_problems(step: StepFields) -> Iterator[Problem]:
    for name in (*_VALUES, "job_namespace"):
        yield from value_problems(name, getattr(step, name))
    if step.command not in (None, LAUNCHER):
        hint = "write the command of the replicas into the job"
        yield Problem("command", "is the launcher's own", hint)
    yield from choice_problems("on_term", step.on_term, (AUTO, *OnTerm))
    yield from choice_problems("on_suspend", step.on_suspend, ON_SUSPEND)
    yield from choice_problems("driver", step.driver, tuple(DriverChoice))
    seconds = step.grace_seconds
    if not isinstance(seconds, int) or isinstance(seconds, bool) or seconds < 1:
        yield Problem("grace_seconds", f"{seconds!r} is no whole number of seconds above 0", "write 60")
    yield from output_problems(step.metric_outputs)
    if step.checkpoint_artifact:
        yield from _mount_problems(step)
    yield from cache_key_problems(step.memoize.key if isinstance(step.memoize, m.Memoize) else None)


def _grace_problems(step: StepFields) -> Iterator[Problem]:
    try:
        found = patched_value(step.pod_spec_patch, contract.GRACE)
    except InvalidJob as error:
        yield from error.problems
        return
    number = isinstance(found, int) and not isinstance(found, bool) and 0 < found < _LONGEST_GRACE
    if not (found is None or number or is_reference(found)):
        hint = "write 120, or a patch that is text, with {{…}} without quotes around it"
        yield Problem("pod_spec_patch", f"{contract.GRACE} is no whole number of seconds above 0", hint)


def _shape_problems(overrides: Any) -> Iterator[Problem]:
    """What makes them no values for places."""
    hint = 'write {"spec.runPolicy.backoffLimit": 3}'
    if not isinstance(overrides, Mapping):
        yield Problem("overrides", f"must be a mapping, not {type(overrides).__name__}", hint)
        return
    for path, value in overrides.items():
        if not isinstance(path, str):
            yield Problem(f"overrides[{path!r}]", "is no place of the job", hint)
        if isinstance(value, Input | Parameter):
            continue
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            yield Problem(f"overrides[{path!r}]", f"cannot be written as JSON: {error}", hint)


def _name_problems(step: StepFields) -> Iterator[Problem]:
    """Names of input parameters that mean two things: what Argo fills in is one value for both."""
    own, known = _own_names(step), dict[str, tuple[str, Any]]()
    for one in as_list(step.inputs):
        for parameter in as_parameters(one):
            known[str(parameter.name)] = ("inputs", _declaration(parameter))
    for where, given in _given_parameters(step):
        name = str(given.name)
        if name in own:
            problem = f"each step has an input parameter {name} of its own"
            yield Problem(where, problem, "give this one another name")
            continue
        declared = _declaration(given)
        first, other = known.setdefault(name, (where, declared))
        alike = declared[0] in (None, other[0]) if first == "inputs" else other == declared
        if not alike:
            problem = f"the input parameter {name} is declared in another way by {first}"
            yield Problem(where, problem, "declare both alike, or give one another name")


def _declaration(given: Any) -> tuple[str | None, ...]:
    """What makes two declarations of an input parameter one; its default first."""
    default = given.default if getattr(given, "value", None) is None else given.value
    rest = (given.type, given.minimum, given.maximum, given.pattern) if isinstance(given, Input) else ()
    enum = getattr(given, "enum", None)
    return (None if default is None else str(default), *map(str, rest), *map(str, enum or ()))


def _own_names(step: StepFields) -> set[str]:
    """Input parameters that the step makes itself, unless its author gives one for that argument."""
    found = [name for name in _VALUES if not is_given_later(getattr(step, name))]
    if is_document(step.job):
        return {"job", *map(_dashed, found)}
    found += [name for name in _OPEN if not is_given_later(getattr(step, name))]
    return {"overrides", "inputs", "input-values", *map(_dashed, found)}


def _given_parameters(step: StepFields) -> Iterator[tuple[str, Parameter | Input]]:
    """Parameters that the author gives for arguments and overrides, each with where."""
    for name in ("job", *_VALUES, *_OPEN, "on_term", "on_suspend", "job_namespace"):
        if isinstance(value := reference_of(getattr(step, name)), Parameter):
            yield name, value
    for path, value in step.overrides.items():
        if isinstance(value := reference_of(value), Parameter | Input):
            yield f"overrides[{path!r}]", value


def _mounts(step: StepFields) -> Iterator[tuple[str, bool]]:
    """Where the author's volumes are mounted, and whether they hold secrets or settings."""
    given = as_list(step.volumes)
    private = {one.name for one in given if isinstance(one, _PRIVATE_VOLUMES) or _is_private(one)}
    for one in [*given, *as_list(step.volume_mounts)]:
        if folder := getattr(one, "mount_path", None):
            yield str(folder), one.name in private


def _is_private(volume: Any) -> bool:
    return any(getattr(volume, field, None) for field in ("secret", "config_map", "projected", "downward_api"))


def _data_mounts(step: StepFields) -> list[str]:
    """Where a checkpoint may be: what training prints as one is no reason to publish a secret."""
    return [*dict.fromkeys(folder for folder, private in _mounts(step) if not private)]


def _mount_problems(step: StepFields) -> Iterator[Problem]:
    data = _data_mounts(step)
    if not data:
        hint = 'write volumes=[ExistingVolume(name="models", claim_name="tf-dist-models", mount_path="/models")]'
        yield Problem("checkpoint_artifact", "the step mounts no volume that a checkpoint could be on", hint)
    for hidden in (*_TOKENS, contract.OUT, *(folder for folder, private in _mounts(step) if private)):
        for folder in data:
            if PurePosixPath(hidden).is_relative_to(folder):
                problem = f"{hidden} is within {folder}, whose files may be copied into the artifact"
                yield Problem("checkpoint_artifact", problem, "mount the volume of the checkpoints elsewhere")


def _override_problems(step: StepFields) -> Iterator[Problem]:
    """What would be parsed once the workflow has filled it in, and inputs that say nothing."""
    for path, value in step.overrides.items():
        where = f"overrides[{path!r}]"
        yield from reference_problems(where, path, WAY)
        try:
            place = parse_field_path(path)
        except ValueError as error:
            yield Problem(where, str(error), "write spec.runPolicy.backoffLimit")
            continue
        if isinstance(value, Input):
            yield from reference_problems(where, json.dumps(value.at(path).document()), WAY)
            yield from value.problems(path)
        elif (filled := _filled(step, path, value)) is None:
            yield from reference_problems(where, json.dumps(value, default=str), WAY)
        elif is_script(step.job, place):
            problem = f"{filled.source} would be parsed by the shell together with the value that is filled in for it"
            yield Problem(where, problem, f"{WAY}, with enum or pattern; or put it into a variable of the environment")


def _filled(step: StepFields, path: str, value: Any) -> FilledIn | None:
    if isinstance(value, Input):
        return FilledIn.of_input(value, path)
    return filled_reference(path, value, lambda sample: fits(step.job, Override(parse_field_path(path), sample)))


def _fill_ins(step: StepFields) -> list[FilledIn]:
    """What the workflow fills in, with a name of its own for each source."""
    found: list[FilledIn] = []
    sources: dict[str, str] = {}
    for path, value in step.overrides.items():
        if (one := _filled(step, path, value)) is None:
            continue
        name, count = one.declared.name, 1
        while sources.setdefault(name, one.source) != one.source:
            count += 1
            name = f"{one.declared.name}-{count}"
        found.append(replace(one, declared=replace(one.declared, name=name)))
    return found


def _fixed(step: StepFields) -> dict[str, Any]:
    """The overrides that are values."""
    return {path: value for path, value in step.overrides.items() if _filled(step, path, value) is None}


def _known_policies(step: StepFields) -> dict[str, str]:
    """The annotations that the policies are, as far as they are known here; InvalidJob."""
    found = policy_annotations(
        fallback=reference_text(step.fallback),
        on_eviction=reference_text(step.on_eviction),
        on_preemption=reference_text(step.on_preemption),
        admission_timeout=reference_text(step.admission_timeout),
        has_fallbacks=has_fallbacks(step.job),
        open_=is_lone_reference,
    )
    known = {key: value for key, value in found.items() if not is_lone_reference(value)}
    if is_lone_reference(found.get(names.FALLBACK)):
        known.pop(names.ADMISSION_TIMEOUT, None)  # it is the job's only together with them
    way = "write the value itself, or the whole argument as one parameter: it becomes a part of the job"
    problems = [one for key, value in known.items() for one in reference_problems(_POLICIES[key], value, way)]
    if problems:
        raise InvalidJob(problems)
    return known


def _whole_job(step: StepFields) -> str | Parameter:
    """The job's text, found right with all that is known of what will be changed in it; or who has it."""
    if not is_document(step.job):
        return step.job if isinstance(step.job, Parameter) else str(step.job)
    filled = [
        override
        for one in _fill_ins(step)
        for override in input_overrides([one.declared], {one.declared.name: one.usual})
    ]
    fixed = [Override(parse_field_path(path), value) for path, value in _fixed(step).items()]
    policies = [Override(annotation_path(key), value) for key, value in _known_policies(step).items()]
    return document_text(step.job, [*fixed, *filled, *policies], way=WAY)


def command_line(step: StepFields) -> tuple[list[str], list[Parameter]]:
    """The launcher's command line, and the input parameters that it needs. InvalidJob where the job is not valid."""
    own: list[Parameter] = []
    words = [*_job_options(step, own), *_place_options(step), *_run_options(step, own)]
    return words, [*{one.name: one for one in own}.values()]


def _job_options(step: StepFields, own: list[Parameter]) -> Iterator[str]:
    yield f"--job={as_argument('job', _whole_job(step), own)}"
    for name in _VALUES:
        yield f"--{_OPTIONS.get(name, _dashed(name))}={as_argument(_dashed(name), getattr(step, name), own)}"
    yield from (f"--set-json={path}={json.dumps(value)}" for path, value in _fixed(step).items())
    for one in _fill_ins(step):
        yield f"--input={json.dumps(one.declared.document())}"
        yield f"--set-input={one.declared.name}={one.source}"
        own += [one.parameter] if one.parameter is not None else []
    if not is_document(step.job):
        yield f"--overrides={as_argument('overrides', None, own)}"
        yield f"--input={as_argument('inputs', None, own)}"
        yield f"--set-inputs={as_argument('input-values', None, own)}"


def _place_options(step: StepFields) -> Iterator[str]:
    yield from ("--workflow={{workflow.name}}", "--workflow-uid={{workflow.uid}}", "--node={{node.name}}")
    if step.retry_strategy is not None:
        limit = _retry_limit(step.retry_strategy)
        yield "--retry={{retries}}"
        yield f"--retries={1000000 if limit is None else limit}"  # without a limit there is always another try
    yield f"--out={contract.OUT}"


def _run_options(step: StepFields, own: list[Parameter]) -> Iterator[str]:
    open_ = not is_document(step.job)
    for name in _OPEN[:3]:
        given = getattr(step, name)
        if open_:
            yield f"--{_dashed(name)}={as_argument(_dashed(name), _text(given), own)}"
        elif given is not None:
            yield f"--{_dashed(name)}={as_fixed(_text(given), own)}"
    yield f"--driver={as_argument('driver', step.driver, own) if open_ else as_fixed(step.driver, own)}"
    yield f"--on-term={as_fixed(step.on_term, own)}"
    yield f"--on-suspend={as_fixed(step.on_suspend, own)}"
    yield f"--grace={grace_seconds(step)}s"
    if not step.reattach:
        yield "--no-reattach"
    if step.checkpoint_artifact:
        yield from (f"--checkpoint-files={folder}" for folder in _data_mounts(step))
    if step.job_namespace:
        yield f"--namespace={as_fixed(step.job_namespace, own)}"


def grace_seconds(step: StepFields) -> int | str:
    """What the author's patch of the pod says comes before the argument: a number, or a reference to one."""
    found = patched_value(step.pod_spec_patch, contract.GRACE)
    return step.grace_seconds if found is None else found


def _text(given: Any) -> Any:
    """A list of fallbacks as JSON; what is text or a parameter already, as it is."""
    several = isinstance(given, Iterable) and not isinstance(given, str)
    return json.dumps(given) if several else given


def _dashed(name: str) -> str:
    return name.replace("_", "-")
