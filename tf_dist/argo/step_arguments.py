"""Arguments of a step that runs a job: their problems, and the launcher's command line."""

from __future__ import annotations

import base64
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

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
    as_argument,
    as_list,
    as_parameters,
    cache_key_problems,
    is_given_later,
    is_lone_reference,
    is_reference,
    output_problems,
    patched_value,
    reference_of,
    reference_problems,
    reference_text,
    value_problems,
)
from tf_dist.argo.job_source import (
    FilledIn,
    Input,
    check_readable,
    code_folder_of,
    filled_reference,
    fits,
    has_fallbacks,
    is_document,
    is_script,
    job_documents,
)
from tf_dist.argo.launcher import contract
from tf_dist.argo.launcher.launcher_arguments import LARGEST_ARGUMENT, LauncherOptions, document_argument
from tf_dist.client.code_archive import CODE_WAYS, pack_code
from tf_dist.core.dialects import policy_annotations
from tf_dist.core.dialects.common_annotations import annotation_path
from tf_dist.core.model import names
from tf_dist.core.model.fieldpath import parse_field_path
from tf_dist.core.model.overrides import Override
from tf_dist.core.pipeline.inputs import input_overrides
from tf_dist.core.pipeline.run_options import COUNT, SWITCH, Face, argument_problems, options_of
from tf_dist.errors import InvalidJob, Problem

if TYPE_CHECKING:
    from tf_dist.argo.steps import TFJobStep

WAY: Final = 'write overrides={"spec.…args[1]": Input("steps", int, minimum=1, text="--steps={}")}'

ROWS: Final = options_of(LauncherOptions, Face.STEP)
"""The options of the launcher that are arguments of a step, by argument."""
APART: Final = ("job", "overrides", "code")
_OPEN: Final = ("fallback", "on_eviction", "on_preemption", "driver")
"""Options that become input parameters if the workflow provides the job."""
_OF_THE_WORKFLOW: Final = {"overrides": "overrides", "inputs": "inputs", "parameters": "input-values"}
"""Additional options of the launcher in this case, and their input parameters."""
LAUNCHER: Final = ["tf-dist", "argo-launch"]
_LONGEST_GRACE: Final = 10**9
_ENDLESS: Final = 1_000_000  # retries of a strategy without a limit
_LARGEST_WORKFLOW: Final = 1 << 20  # bytes of an object that the API server stores
_POLICIES: Final = {
    names.FALLBACK: "fallback",
    names.ON_EVICTION: "on_eviction",
    names.ON_PREEMPTION: "on_preemption",
    names.ADMISSION_TIMEOUT: "admission_timeout",
}


# Arguments that are Hera objects: their types, their description, and an example.
_OBJECTS: Final[Mapping[str, tuple[tuple[type, ...], str, str]]] = {
    "retry_strategy": ((RetryStrategy, m.RetryStrategy), "a RetryStrategy", "RetryStrategy(limit=3)"),
    "resources": ((Resources, m.ResourceRequirements), "a Resources", 'Resources(cpu_request="100m")'),
    "memoize": ((m.Memoize,), "a Memoize", 'models.Memoize(key=…, cache=…, max_age="1h")'),
}
_PUTS: Final = (Parameter, m.Parameter, Artifact, m.Artifact)
_PRIVATE_VOLUMES: Final = (SecretVolume, ConfigMapVolume, ProjectedVolume, DownwardAPIVolume)
_TOKENS: Final = tuple(f"{folder}/secrets/kubernetes.io/serviceaccount" for folder in ("/var/run", "/run"))


def check_arguments(step: TFJobStep) -> None:
    """Raise InvalidJob with all problems of the arguments, except those of the job itself."""
    problems = [*_type_problems(step), *_value_problems(step), *_grace_problems(step)]
    unread = [*_problems_of(lambda: check_readable(step.job)), *_shape_problems(step.overrides)]
    if not unread:
        found = [*_override_problems(step)]
        wrong = {one.path for one in problems}
        problems += [*found, *(() if found or "inputs" in wrong else _name_problems(step))]
        # The policies report an invalid time again.
        problems += [one for one in _problems_of(lambda: _known_policies(step)) if one.path not in wrong]
    if problems or unread:
        raise InvalidJob([*problems, *unread])


def _problems_of(check: Callable[[], object]) -> list[Problem]:
    try:
        check()
    except InvalidJob as error:
        return list(error.problems)
    return []


def _type_problems(step: TFJobStep) -> Iterator[Problem]:
    """Problems of arguments that Hera does not check."""
    for name, (types, what, example) in _OBJECTS.items():
        given = getattr(step, name)
        if given is not None and not isinstance(given, types):
            yield Problem(name, f"must be {what}, not {type(given).__name__}", f"write {example}")
    if isinstance(step.retry_strategy, RetryStrategy | m.RetryStrategy):
        yield from COUNT.problems("retry_strategy.limit", _retry_limit(step.retry_strategy), is_reference, "4")
    for name in ("metrics_artifact", "checkpoint_artifact"):
        yield from SWITCH.problems(name, getattr(step, name), lambda _: False)
    for name in ("labels", "annotations"):
        given = getattr(step, name)  # a reference can be in it, but not in place of it
        yield from argument_problems(name, given, is_reference if isinstance(given, Mapping) else lambda _: False)
    for name in ("inputs", "outputs"):
        for one in as_list(getattr(step, name)):
            if not isinstance(one, (*_PUTS, dict) if name == "inputs" else _PUTS):
                what = f"must be a Parameter, an Artifact, or several, not {type(one).__name__}"
                yield Problem(name, what, 'write [Parameter(name="steps")]')
                break


def _retry_limit(strategy: RetryStrategy | m.RetryStrategy) -> Any:
    return getattr(strategy.limit, "root", strategy.limit)


def _value_problems(step: TFJobStep) -> Iterator[Problem]:
    for name, row in ROWS.items():
        if name not in APART and not row.kind.structured:
            yield from value_problems(name, getattr(step, name), row)
    if step.command not in (None, LAUNCHER):
        hint = "write the command of the replicas into the job"
        yield Problem("command", "is set by the launcher itself", hint)
    seconds = step.grace_seconds
    if not isinstance(seconds, int) or isinstance(seconds, bool) or seconds < 1:
        yield Problem("grace_seconds", f"{seconds!r} is not a whole number of seconds above 0", "write 60")
    yield from ROWS["packages"].problems(step.packages, is_reference)
    yield from output_problems(step.metric_outputs)
    yield from _problems_of(lambda: _code_archive(step))
    if step.checkpoint_artifact:
        yield from _mount_problems(step)
    yield from cache_key_problems(step.memoize.key if isinstance(step.memoize, m.Memoize) else None)


def _code_archive(step: TFJobStep) -> str:
    """The packed folder that is sent with the job; "" for none. Raises InvalidJob."""
    problems = [*ROWS["code"].problems(step.code)]
    if isinstance(step.code, str) and is_reference(step.code):
        problems = [Problem("code", "the folder is packed where the workflow is written", "write its path")]
    if problems:
        raise InvalidJob(problems)
    folder = step.code or code_folder_of(step.job)
    return base64.b64encode(pack_code(folder)).decode() if folder else ""


def _grace_problems(step: TFJobStep) -> Iterator[Problem]:
    try:
        found = patched_value(step.pod_spec_patch, contract.GRACE)
    except InvalidJob as error:
        yield from error.problems
        return
    number = isinstance(found, int) and not isinstance(found, bool) and 0 < found < _LONGEST_GRACE
    if not (found is None or number or is_reference(found)):
        hint = "write 120, or a patch that is text, with {{…}} without quotes around it"
        yield Problem("pod_spec_patch", f"{contract.GRACE} is not a whole number of seconds above 0", hint)


def _shape_problems(overrides: Any) -> Iterator[Problem]:
    """Overrides that are not a mapping of paths to JSON values."""
    hint = 'write {"spec.runPolicy.backoffLimit": 3}'
    if not isinstance(overrides, Mapping):
        yield Problem("overrides", f"must be a mapping, not {type(overrides).__name__}", hint)
        return
    for path, value in overrides.items():
        if not isinstance(path, str):
            yield Problem(f"overrides[{path!r}]", "is not a path in the job", hint)
        if isinstance(value, Input | Parameter):
            continue
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            yield Problem(f"overrides[{path!r}]", f"cannot be written as JSON: {error}", hint)


def _name_problems(step: TFJobStep) -> Iterator[Problem]:
    """Problems of input parameters that have the same name but different declarations."""
    # The input parameters that the step creates, unless the author gives them.
    open_ = not is_document(step.job)
    made = {name for name, row in ROWS.items() if row.parameter or (open_ and name in _OPEN)}
    own = {_dashed(name) for name in made if not is_given_later(getattr(step, name))}
    own |= {*_OF_THE_WORKFLOW.values()} if open_ else set()
    known: dict[str, tuple[str, Any]] = {}
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
            problem = f"the input parameter {name} is declared differently by {first}"
            yield Problem(where, problem, "declare both alike, or rename one of them")


def _declaration(given: Any) -> tuple[str | None, ...]:
    """The values in which two declarations of an input parameter must agree. The first value is the default."""
    default = given.default if getattr(given, "value", None) is None else given.value
    rest = (given.type, given.minimum, given.maximum, given.pattern) if isinstance(given, Input) else ()
    enum = getattr(given, "enum", None)
    return (None if default is None else str(default), *map(str, rest), *map(str, enum or ()))


def _given_parameters(step: TFJobStep) -> Iterator[tuple[str, Parameter | Input]]:
    """The parameters of the author, with the argument of each."""
    for name in ROWS.keys() - {"overrides"}:
        if isinstance(value := reference_of(getattr(step, name)), Parameter):
            yield name, value
    for path, value in step.overrides.items():
        if isinstance(value := reference_of(value), Parameter | Input):
            yield f"overrides[{path!r}]", value


def _mounts(step: TFJobStep) -> Iterator[tuple[str, bool]]:
    """The mounted folders, and whether they contain secrets or settings."""
    given = as_list(step.volumes)
    private = {one.name for one in given if isinstance(one, _PRIVATE_VOLUMES) or _is_private(one)}
    for one in [*given, *as_list(step.volume_mounts)]:
        if folder := getattr(one, "mount_path", None):
            yield str(folder), one.name in private


def _is_private(volume: Any) -> bool:
    return any(getattr(volume, field, None) for field in ("secret", "config_map", "projected", "downward_api"))


def _data_mounts(step: TFJobStep) -> list[str]:
    """The folders that may contain a checkpoint. Folders with secrets are not published."""
    return [*dict.fromkeys(folder for folder, private in _mounts(step) if not private)]


def _mount_problems(step: TFJobStep) -> Iterator[Problem]:
    data = _data_mounts(step)
    if not data:
        hint = 'write volumes=[ExistingVolume(name="models", claim_name="tf-dist-models", mount_path="/models")]'
        yield Problem("checkpoint_artifact", "the step mounts no volume for checkpoints", hint)
    for hidden in (*_TOKENS, contract.OUT, *(folder for folder, private in _mounts(step) if private)):
        for folder in data:
            if PurePosixPath(hidden).is_relative_to(folder):
                problem = f"{hidden} is within {folder}, whose files may be copied into the artifact"
                yield Problem("checkpoint_artifact", problem, "mount the volume of the checkpoints elsewhere")


def _override_problems(step: TFJobStep) -> Iterator[Problem]:
    """Overrides that would be parsed after the workflow fills them in, and invalid inputs."""
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


def _filled(step: TFJobStep, path: str, value: Any) -> FilledIn | None:
    if isinstance(value, Input):
        return FilledIn.of_input(value, path)
    return filled_reference(path, value, lambda sample: fits(step.job, Override(parse_field_path(path), sample)))


def _fill_ins(step: TFJobStep) -> list[FilledIn]:
    """The values that the workflow fills in, with a unique name for each source."""
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


def _fixed(step: TFJobStep) -> dict[str, Any]:
    """The overrides with fixed values."""
    return {path: value for path, value in step.overrides.items() if _filled(step, path, value) is None}


def _known_policies(step: TFJobStep) -> dict[str, str]:
    """The annotations of the policies that are known here. Raises InvalidJob."""
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
        known.pop(names.ADMISSION_TIMEOUT, None)  # an annotation only together with fallbacks
    way = "write the value itself, or the whole argument as one parameter: it becomes a part of the job"
    problems = [one for key, value in known.items() for one in reference_problems(_POLICIES[key], value, way)]
    if problems:
        raise InvalidJob(problems)
    return known


def _job_documents(step: TFJobStep, fixed: Mapping[str, Any], filled: Sequence[FilledIn]) -> list[dict[str, Any]]:
    """The documents of the job, checked with all known changes."""
    usual = [override for one in filled for override in input_overrides([one.declared], {one.declared.name: one.usual})]
    known = [Override(parse_field_path(path), value) for path, value in fixed.items()]
    policies = [Override(annotation_path(key), value) for key, value in _known_policies(step).items()]
    return job_documents(step.job, [*known, *usual, *policies], way=WAY)


def launcher_arguments(step: TFJobStep, name: str | None, given: Sequence[Any]) -> tuple[list[Any], list[Parameter]]:
    """The arguments of the launcher, with those of the author, and the input parameters. Raises InvalidJob.

    The document is a fixed text. Each value that the workflow fills in is a separate argument.
    """
    document: dict[str, Any] = {}
    values: dict[str, str] = {}
    own: list[Parameter] = []
    open_ = not is_document(step.job)
    for called, row in ROWS.items():
        value = getattr(step, called)
        if called in APART:
            continue
        if row.parameter or is_given_later(value) or (open_ and called in _OPEN):
            values[row.name] = as_argument(_dashed(called), _text(value), own)
        elif value not in (None, "") and row.read(value) != row.default:
            document[row.name] = value
    fixed, filled = _fixed(step), _fill_ins(step)
    document |= {"code_archive": archive} if (archive := _code_archive(step)) else {}
    document |= {"overrides": fixed} if fixed else {}
    document |= {"inputs": [one.declared.document() for one in filled]} if filled else {}
    values |= {f"values.{one.declared.name}": one.source for one in filled}
    own += [one.parameter for one in filled if one.parameter is not None]
    if step.checkpoint_artifact:
        document["checkpoint_files"] = _data_mounts(step)
    values |= {"workflow": "{{workflow.name}}", "workflow_uid": "{{workflow.uid}}", "node": "{{node.name}}"}
    if step.retry_strategy is not None:
        limit = _retry_limit(step.retry_strategy)
        values |= {"retry": "{{retries}}", "retries": str(_ENDLESS if limit is None else limit)}
    values |= {"grace": str(grace_seconds(step)), "out": contract.OUT}
    if open_:
        values["job"] = as_argument("job", step.job if isinstance(step.job, Parameter) else str(step.job), own)
        for option, parameter in _OF_THE_WORKFLOW.items():
            values[option] = as_argument(parameter, None, own)
    else:
        documents = _job_documents(step, fixed, filled)
        document["job"] = documents[0] if len(documents) == 1 else documents
    rest = [*(f"{option}={value}" for option, value in values.items()), *given]
    own = [*{one.name: one for one in own}.values()]
    text = _sized(document, name, [*rest, *(one.default or "" for one in own)])
    return [*([text] if document else ()), *rest], own


def _sized(document: Mapping[str, Any], name: str | None, rest: Sequence[Any]) -> str:
    """The document as text, compressed if it is too large for the kernel. Raises InvalidJob above Argo's limit.

    Argo passes the arguments of a step as one argument or variable, and stores all steps of a workflow in one object.
    """
    text, others = document_argument(document), sum(len(str(one).encode()) for one in rest)
    size = len(text.encode()) + others
    if size <= LARGEST_ARGUMENT:
        return text
    packed = document_argument(document, pack=True)
    sent = len(packed) + others
    way = "move data and scripts out of the job, into the image, a ConfigMap or a volume"
    if sent > _LARGEST_WORKFLOW:
        what = (
            f"the arguments of the step have {sent:,} bytes, and a workflow has {_LARGEST_WORKFLOW:,} for all its steps"
        )
        if code := len(document.get("code_archive", "")):
            raise InvalidJob([Problem("code", f"{what}; {code:,} of them are the code", CODE_WAYS)])
        raise InvalidJob([Problem("job", what, way)])
    told = [f"the arguments of step {name or '(without a name)'} have {size:,} bytes, the job included"]
    if document:
        told.append(f"its document is written compressed ({len(packed):,} bytes), which people cannot read")
    if sent > LARGEST_ARGUMENT:
        told.append(f"before Argo 4.1 a pod with more than {LARGEST_ARGUMENT:,} does not start")
    warnings.warn("; ".join([*told, way]), stacklevel=5)
    return packed


def grace_seconds(step: TFJobStep) -> int | str:
    """The grace period: a number, or a reference. The patch of the pod overrides the argument."""
    found = patched_value(step.pod_spec_patch, contract.GRACE)
    return step.grace_seconds if found is None else found


def _text(given: Any) -> Any:
    """A list of fallbacks as JSON. Texts and parameters are not changed."""
    several = isinstance(given, Iterable) and not isinstance(given, str)
    return json.dumps(given) if several else given


def _dashed(name: str) -> str:
    return name.replace("_", "-")
