"""The registry of formats by apiVersion and kind, and the detection of a document's format."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ValidationError, create_model

from tf_dist.core.dialects import kubeflow_v1, kubeflow_v1alpha1, volcano
from tf_dist.core.dialects.common_schema import SchemaModel
from tf_dist.core.dialects.field_errors import MISSING, FieldErrors, describe_value, quote_hint, report_schema_errors
from tf_dist.core.dialects.related_kinds import related_kind
from tf_dist.core.model.fieldpath import mapping, nearest_word, suggestion, value_at
from tf_dist.core.model.job import Dialect, Document, Job
from tf_dist.core.model.names import MAX_WORKERS, MIN_WORKERS
from tf_dist.errors import InvalidJob, Problem


@dataclass(frozen=True, slots=True)
class Format:
    """A format: its schema, the defaults of its spec, its validation, and its conversion to a job."""

    model: type[BaseModel]
    default_spec: Callable[[Document], Document]
    check: Callable[[Any, FieldErrors], None]
    build: Callable[[Any], Job]

    def defaulted(self, document: Document) -> dict[str, Any]:
        """The document with the defaults of the original system; unchanged parts are shared with the original."""
        spec = document.get("spec")
        return {**document, "spec": self.default_spec(spec)} if isinstance(spec, Mapping) else dict(document)


_V1, _ALPHA = kubeflow_v1, kubeflow_v1alpha1
FORMATS: Final[Mapping[Dialect, Format]] = {
    Dialect.TFJOB_V1: Format(_V1.TFJob, _V1.default_spec, _V1.validate, _V1.build),
    Dialect.TFJOB_V1ALPHA1: Format(_ALPHA.TFJob, _ALPHA.default_spec, _ALPHA.validate, _ALPHA.build),
    Dialect.VOLCANO: Format(volcano.VolcanoJob, volcano.default_spec, volcano.validate, volcano.build),
}

_KNOWN: Final = ", ".join(f"{dialect} {dialect.kind}" for dialect in Dialect)


def dialect_of(document: object) -> Dialect:
    """The dialect of apiVersion and kind. Raises InvalidJob, with the nearest known word as a hint, for other kinds."""
    if not isinstance(document, Mapping):
        hint = f"known: {_KNOWN}"
        if isinstance(document, list):
            hint = "give its items one by one, or write them as documents separated by ---"
        elif document is None:
            hint = "the file is empty, or starts with ---"
        message = f"a job is a mapping with apiVersion, kind, metadata and spec, not {describe_value(document)}"
        raise InvalidJob([Problem("", message, hint)])
    version, kind = document.get("apiVersion"), document.get("kind")
    if _is_forerunner(document):
        return Dialect.TFJOB_V1
    for dialect in Dialect:
        if dialect == version and dialect.kind == kind:
            return dialect
    out = FieldErrors()
    _unknown(document, version, kind, out)
    raise InvalidJob(out.errors)


FORERUNNERS: Final = ("kubeflow.org/v1alpha2", "kubeflow.org/v1beta1", "kubeflow.org/v1beta2")
"""Versions of TFJob between v1alpha1 and v1 (tf-operator 0.2 to 0.7). They have the layout of v1. By default, running
pods were removed at the end of a job (``SetDefaults_TFJob``), and exit codes 130, 137, 138 and 143 were retried
(``train_util``).
"""
_FORMER_TTL: Final = "ttlSecondsAfterFinishing"
_BOUNDS: Final = {"min-instances": MIN_WORKERS, "max-instances": MAX_WORKERS}
"""The fields that DRAGON 0.9 added to the spec of a v1 TFJob, and the equivalent annotations."""


def _is_forerunner(document: Document) -> bool:
    return document.get("kind") == Dialect.TFJOB_V1.kind and document.get("apiVersion") in FORERUNNERS


def current(document: Any) -> Any:
    """The document in the version that tf-dist runs: a TFJob of v1alpha2 to v1beta2, or of DRAGON 0.9, as v1.

    Replica types without a value are removed, as API servers do. Other documents are returned unchanged. The argument
    is never changed; unchanged parts are shared.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("spec"), Mapping):
        return document
    if _is_forerunner(document):
        document = {**document, "apiVersion": Dialect.TFJOB_V1.value, "spec": _forerunner_spec(document["spec"])}
    if isinstance(roles := document["spec"].get("tfReplicaSpecs"), Mapping) and None in roles.values():
        present = {key: value for key, value in roles.items() if value is not None}
        document = {**document, "spec": {**document["spec"], "tfReplicaSpecs": present}}
    if document.get("apiVersion") == Dialect.TFJOB_V1 and not _BOUNDS.keys().isdisjoint(document["spec"]):
        return _with_bounds(document)
    return document


def _forerunner_spec(spec: Document) -> Document:
    """The spec with its former default of cleanPodPolicy, and with the time to live under its v1 name."""
    policy = spec.get("runPolicy")
    if not isinstance(policy, Mapping | None):
        return spec
    filled = dict(mapping(policy))
    if spec.get("cleanPodPolicy") is None and filled.get("cleanPodPolicy") is None:
        filled["cleanPodPolicy"] = "Running"
    seconds = spec.get(_FORMER_TTL)
    if type(seconds) is int and seconds >= 0 and filled.get("ttlSecondsAfterFinished") is None:
        filled["ttlSecondsAfterFinished"] = seconds
        spec = {key: value for key, value in spec.items() if key != _FORMER_TTL}
    return {**spec, "runPolicy": filled}


def _with_bounds(document: Document) -> dict[str, Any]:
    """The document with DRAGON's bounds of workers as annotations. Invalid values stay, and are reported as unknown."""
    spec = document["spec"]
    found = {key: spec[key] for key in _BOUNDS if type(spec.get(key)) is int and spec[key] >= 0}
    kept = {key: value for key, value in spec.items() if key not in found}
    notes = {_BOUNDS[key]: str(value) for key, value in found.items() if value}  # 0 is not a bound
    metadata = mapping(document.get("metadata"))
    annotations = {**notes, **mapping(metadata.get("annotations"))}
    if annotations:
        metadata = {**metadata, "annotations": annotations}
    return {**document, "metadata": metadata, "spec": kept}


def advise_version(document: Document, out: FieldErrors) -> None:
    """Warnings about a document that runs as another version, with the differences."""
    former = _is_forerunner(document)
    if former:
        message = f"{document['apiVersion']} is run as {Dialect.TFJOB_V1}"
        out.warn(("apiVersion",), message, f"tf-dist convert --to {Dialect.TFJOB_V1} writes it so; kubectl needs that")
    for key, replicas in mapping(value_at(document, "spec", "tfReplicaSpecs")).items():
        place = ("spec", "tfReplicaSpecs", str(key))
        if replicas is None:
            out.warn(place, "is empty, so the job has no such replicas", "leave it out")
        if former and value_at(replicas, "restartPolicy") == "ExitCode":
            message = "retries exit codes from 128 up; it was 130, 137, 138 and 143 only"
            out.warn((*place, "restartPolicy"), message)


def _unknown(document: Document, version: object, kind: object, out: FieldErrors) -> None:
    """Report whether the apiVersion or the kind is wrong. Each is checked against the other, if the other is known."""
    if known := related_kind(document):
        out.error(("kind",), *known)
        return
    kinds = sorted({one.kind for one in Dialect})
    if isinstance(version, str) and isinstance(kind, str):
        groups = {one.value.partition("/")[0] for one in Dialect}
        if not nearest_word(version.partition("/")[0], groups) and not nearest_word(kind, kinds):
            article = "an" if kind[:1] in "AEIOU" else "a"
            out.error(("kind",), f"{article} {kind} is neither a job nor an object that goes with jobs", _BESIDE)
            return
    versions = [one.value for one in Dialect if one.kind == kind] or [one.value for one in Dialect]
    if kind == Dialect.TFJOB_V1.kind and (actual := spec_layout(document)):
        versions = [actual]
    good = version in versions
    if not good:
        _unknown_word("apiVersion", version, versions, out)
    fitting = [one.kind for one in Dialect if one == version] or kinds
    if kind not in fitting and (good or kind not in kinds):
        _unknown_word("kind", kind, fitting, out)


_BESIDE: Final = (
    "apply it with kubectl from a file of its own; in addition to jobs, a file can contain ConfigMaps, Secrets, "
    "Services, PersistentVolumeClaims and Queues"
)


def _unknown_word(key: str, found: object, known: list[str], out: FieldErrors) -> None:
    listed = f"known: {', '.join(known)}" if len(known) > 1 else f"write {key}: {known[0]}"
    if found is None:
        out.error((key,), MISSING, listed)
    elif not isinstance(found, str):
        out.error((key,), f"must be text, not {describe_value(found)}", quote_hint(found))
    else:
        what = "version" if key == "apiVersion" else key
        out.error((key,), f"unknown {what} {found!r}", suggestion(found, known, listed))


def spec_dialect(document: Document, dialect: Dialect) -> Dialect:
    """The dialect in which a TFJob's spec is written, which its apiVersion may contradict.

    A CRD that serves v1 and v1alpha1 without conversion changes only the apiVersion, so the server may return an object
    with the other apiVersion.
    """
    return dialect if dialect is Dialect.VOLCANO else spec_layout(document) or dialect


def spec_layout(document: Document) -> Dialect | None:
    """The TFJob version whose layout the spec has; None if the layout is ambiguous."""
    spec = mapping(value_at(document, "spec"))
    maps, lists = (spec.get(key) is not None for key in ("tfReplicaSpecs", "replicaSpecs"))
    if maps == lists:
        return None
    return Dialect.TFJOB_V1 if maps else Dialect.TFJOB_V1ALPHA1


def check_other_layout(document: Document, dialect: Dialect, out: FieldErrors) -> None:
    """Errors for invalid keys of the other layout, which the definition of TFJobs also accepts."""
    if dialect is Dialect.VOLCANO:
        return
    spec = mapping(value_at(document, "spec"))
    if spec.get("tfReplicaSpecs") is not None and spec.get("replicaSpecs") is not None:
        out.error(("spec",), "has both tfReplicaSpecs (v1) and replicaSpecs (v1alpha1)", "keep one of them")
    model = _FOREIGN_KEYS[dialect]
    try:
        model.model_validate(dict(spec), extra="ignore")
    except ValidationError as error:
        report_schema_errors(error, model, out, within=("spec",))


def _foreign_keys(own: type[BaseModel], other: type[BaseModel], moved: Collection[str] = ()) -> type[BaseModel]:
    """The optional keys of the other layout's spec that this layout does not have, with their shapes.

    ``moved``: keys of this layout that the defaults move elsewhere. They are included.
    """
    mine = {info.alias for info in own.model_fields.values()}.difference(moved)
    every = {**other.model_fields, **own.model_fields}
    rest = {name: info for name, info in every.items() if info.alias not in mine and not info.is_required()}
    fields: dict[str, Any] = {name: (info.annotation, info) for name, info in rest.items()}
    return create_model("Beside", __base__=SchemaModel, **fields)


_FOREIGN_KEYS: Final = {
    Dialect.TFJOB_V1: _foreign_keys(kubeflow_v1.Spec, kubeflow_v1alpha1.Spec, kubeflow_v1.RETIRED_KEYS),
    Dialect.TFJOB_V1ALPHA1: _foreign_keys(kubeflow_v1alpha1.Spec, kubeflow_v1.Spec),
}


def check_layout(document: Document, dialect: Dialect, out: FieldErrors) -> Dialect:
    """The dialect with which to read the document. Adds an error if its layout is that of another dialect."""
    actual = spec_dialect(document, dialect)
    if actual is not dialect:
        key = "tfReplicaSpecs" if actual is Dialect.TFJOB_V1 else "replicaSpecs"
        message = f"is the layout of {actual}, but apiVersion is {dialect}"
        out.error(("spec", key), message, f"write apiVersion: {actual}")
    elif dialect is not Dialect.VOLCANO and value_at(document, "spec", "tasks") is not None:
        message = f"is the layout of a Volcano Job, but this is a {dialect} TFJob"
        out.error(("spec", "tasks"), message, f"write apiVersion: {Dialect.VOLCANO} and kind: Job")
    return actual
