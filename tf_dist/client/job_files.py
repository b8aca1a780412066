"""Jobs and companion objects of files, with the problems of all files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from tf_dist.client.yaml_files import FileProblem, YamlDocument, read_yaml_file, read_yaml_text
from tf_dist.core.model.fieldpath import format_field_path
from tf_dist.errors import InvalidJob, Problem

if TYPE_CHECKING:
    from tf_dist.core.dialects import Parsed
    from tf_dist.core.model.gang_queue import Queue
    from tf_dist.core.model.job import Job
    from tf_dist.core.model.overrides import Override

QUEUE: Final = "Queue"
COMPANION_KINDS: Final = ("ConfigMap", "Secret", "PersistentVolumeClaim", "Service")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """A job of a file: its document with overrides, and its parsed form."""

    written: YamlDocument
    """The document."""
    parsed: Parsed
    """The parsed document."""
    owned: tuple[Mapping[str, Any], ...] = ()
    """Objects that are created after the job, and deleted with it."""

    @property
    def job(self) -> Job:
        """The job."""
        return self.parsed.job

    @property
    def document(self) -> dict[str, Any]:
        """What is submitted: the user's document, without defaults."""
        return dict(self.written.content)


@dataclass(frozen=True, slots=True)
class JobFiles:
    """The content of files."""

    jobs: tuple[LoadedJob, ...] = ()
    """The jobs."""
    companions: tuple[YamlDocument, ...] = ()
    """Their companion objects, and queues."""
    volcano_queues: tuple[YamlDocument, ...] = ()
    """Queues of Volcano."""
    problems: tuple[FileProblem, ...] = ()
    """Errors and warnings."""

    @property
    def errors(self) -> tuple[FileProblem, ...]:
        """The problems that are not warnings."""
        return tuple(found for found in self.problems if not found.warning)


class InvalidFiles(InvalidJob):
    """Files with errors. ``found`` has each problem with its location."""

    def __init__(self, found: Iterable[FileProblem]) -> None:
        self.found = tuple(found)
        super().__init__(one.problem for one in self.found)
        self.args = ("\n".join(map(whole_text, self.found)),)


@dataclass
class _Collector:
    jobs: list[LoadedJob] = field(default_factory=list)
    companions: list[YamlDocument] = field(default_factory=list)
    volcano_queues: list[YamlDocument] = field(default_factory=list)
    queues: list[tuple[YamlDocument, Queue]] = field(default_factory=list)
    problems: list[FileProblem] = field(default_factory=list)

    def add(
        self, written: YamlDocument, found: Iterable[Problem], content: Any = None, *, warning: bool = False
    ) -> None:
        """Add problems of a document. Placeholders that remain in ``content`` are reported as their cause."""
        from tf_dist.core.dialects.placeholders import explained  # slow to import, and few commands read files

        for problem in explained(content, found):
            line = written.line(problem.path)
            self.problems.append(
                FileProblem(written.file, written.number, line, written.in_its_words(problem), warning)
            )


def load_job_files(
    files: Sequence[str],
    overrides: Sequence[Override] = (),
    *,
    strict: bool = False,
    texts: Mapping[str, str] | None = None,
    change: Callable[[Any], Any] = lambda content: content,
    volcano_queues: bool = False,
) -> JobFiles:
    """The jobs of files, with ``overrides``. Problems are collected, not raised.

    ``strict``: unknown keys are errors. ``texts``: the texts of files that are not read. ``change``: another change of
    each job, which may raise InvalidJob. ``volcano_queues``: accept queues of Volcano, which are errors otherwise.
    """
    collector = _Collector()
    found: list[YamlDocument] = []
    for name in files:
        documents, problems = read_yaml_text(name, texts[name]) if texts and name in texts else read_yaml_file(name)
        collector.problems += problems
        broken = {problem.number for problem in problems}
        found += [written for written in documents if written.number not in broken]
    return _sorted(collector, found, change, overrides, strict=strict, volcano_queues=volcano_queues)


def load_documents(
    documents: Iterable[YamlDocument],
    overrides: Sequence[Override] = (),
    *,
    change: Callable[[Any], Any] = lambda content: content,
) -> JobFiles:
    """See ``load_job_files``, for documents instead of files."""
    return _sorted(_Collector(), documents, change, overrides)


def _sorted(
    collector: _Collector,
    documents: Iterable[YamlDocument],
    change: Callable[[Any], Any],
    overrides: Sequence[Override],
    *,
    strict: bool = False,
    volcano_queues: bool = False,
) -> JobFiles:
    for document in documents:
        written = replace(document, content=without_server_fields(document.content))
        if _is_queue(written.content):
            _add_queue(collector, written)
        elif volcano_queues and _is_volcano_queue(written.content):
            collector.volcano_queues.append(written)
        elif _is_companion(written.content):
            collector.companions.append(written)
            collector.add(written, _companion_problems(written.content), written.content)
        else:
            _add_job(collector, written, change, overrides, strict)
    _check_queues_together(collector)
    collector.problems += _duplicate_names(collector)
    return JobFiles(
        tuple(collector.jobs),
        tuple(collector.companions),
        tuple(collector.volcano_queues),
        tuple(collector.problems),
    )


def _add_job(
    collector: _Collector,
    written: YamlDocument,
    change: Callable[[Any], Any],
    overrides: Sequence[Override],
    strict: bool,
) -> None:
    from tf_dist.core.dialects import current, parse
    from tf_dist.core.model.overrides import apply_overrides, refuse_unknown_keys

    content = None  # not the written content, whose placeholders ``change`` may have filled before it raises
    try:
        content = change(apply_overrides(written.content, overrides))
        parsed = parse(content, strict=strict)
        refuse_unknown_keys(overrides, parsed.warnings)
        changed = YamlDocument(written.file, written.number, current(content), written.node)
    except InvalidJob as error:
        collector.add(written, (_in_words_of(overrides, problem) for problem in error.problems), content)
        return
    collector.add(written, parsed.warnings, content, warning=True)
    collector.jobs.append(LoadedJob(changed, parsed))


def _in_words_of(overrides: Sequence[Override], problem: Problem) -> Problem:
    """The problem of an override, with the value as the user wrote it."""
    from tf_dist.core.dialects.field_errors import in_source_words, quote_hint

    for one in overrides:
        if one.written and format_field_path(one.path) == problem.path:
            hint = f"--set-string {problem.path}={one.written}"
            found = in_source_words(problem, one.value, one.written)
            return replace(found, hint=hint) if problem.hint == quote_hint(one.value) else found
    return problem


_SERVER_FIELDS: Final = frozenset(
    {
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "managedFields",
        "ownerReferences",
        "finalizers",
    }
)
_SERVER_ANNOTATIONS: Final = (
    "kubectl.kubernetes.io/last-applied-configuration",
    "pv.kubernetes.io/",
    "volume.kubernetes.io/selected-node",
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
)
_SERVER_SPECS: Final[Mapping[str, tuple[str, ...]]] = {
    "PersistentVolumeClaim": ("volumeName",),
    "Service": ("clusterIP", "clusterIPs"),
}


def without_server_fields(content: Any) -> Any:
    """A document that was exported from a cluster (``kubectl get -o yaml``) as a new document; others are unchanged.

    Owners and finalizers are dropped: the garbage collector deletes objects whose owners are gone.
    """
    metadata = content.get("metadata") if isinstance(content, Mapping) else None
    if not isinstance(metadata, Mapping) or (_SERVER_FIELDS.isdisjoint(metadata) and "status" not in content):
        return content
    exported = isinstance(metadata.get("uid"), str)
    dropped = _SERVER_FIELDS if exported else _SERVER_FIELDS - {"ownerReferences", "finalizers"}
    kept = {key: value for key, value in metadata.items() if key not in dropped}
    if isinstance(annotations := kept.get("annotations"), Mapping):
        of_users = {k: v for k, v in annotations.items() if not str(k).startswith(_SERVER_ANNOTATIONS)}
        kept["annotations"] = of_users
    result = {key: value for key, value in content.items() if key != "status"} | {"metadata": kept}
    spec = result.get("spec")
    if exported and isinstance(spec, Mapping) and spec.get("clusterIP") != "None":
        gone = _SERVER_SPECS.get(str(content.get("kind")), ())
        result["spec"] = {key: value for key, value in spec.items() if key not in gone}
    return result


def _is_queue(content: Any) -> bool:
    if not isinstance(content, Mapping) or content.get("kind") != QUEUE:
        return False
    from tf_dist.core.dialects.queue_resource import is_queue

    return is_queue(content)


def _is_volcano_queue(content: Any) -> bool:
    if not isinstance(content, Mapping) or content.get("kind") != QUEUE:
        return False
    from tf_dist.core.dialects.volcano_queue import is_volcano_queue

    return is_volcano_queue(content)


def _add_queue(collector: _Collector, written: YamlDocument) -> None:
    from tf_dist.core.dialects.queue_resource import parse_queue

    try:
        parsed = parse_queue(written.content)
    except InvalidJob as error:
        collector.add(written, error.problems, written.content)
        return
    collector.add(written, parsed.warnings, written.content, warning=True)
    collector.companions.append(written)
    collector.queues.append((written, parsed.queue))


def _check_queues_together(collector: _Collector) -> None:
    """Problems of the queues of all files together."""
    if not collector.queues:
        return
    from tf_dist.core.dialects.queue_resource import check_together

    for position, problem, warning in check_together([queue for _, queue in collector.queues]):
        written = collector.queues[position][0]
        collector.add(written, [problem], written.content, warning=warning)


def _is_companion(content: Any) -> bool:
    return isinstance(content, Mapping) and content.get("kind") in COMPANION_KINDS


def _companion_problems(content: Mapping[str, Any]) -> Iterator[Problem]:
    found = list(_mistyped(content))
    yield from found
    if not found:
        from tf_dist.core.dialects.companions import check_companion
        from tf_dist.core.dialects.field_errors import FieldErrors

        out = FieldErrors()
        check_companion(content, out)
        yield from out.errors


def _mistyped(content: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of a companion without which its rules cannot be checked."""
    if content.get("apiVersion") != "v1":
        yield Problem("apiVersion", f"a {content['kind']} is of apiVersion v1, not {content.get('apiVersion')!r}")
    metadata = content.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        what = "is missing" if name is None else f"{name!r} is not a name"
        yield Problem("metadata.name", what, "lower-case letters, digits and - (at most 253)")
    from tf_dist.core.openapi.kubernetes_types import NOT_THERE, UNKNOWN, type_mistakes, type_of_kind

    for loc, wanted, value, _ in type_mistakes(content, type_of_kind("v1", content["kind"])):
        if loc == ("metadata", "name"):
            continue
        path, hint = format_field_path(loc), "write it in quotes" if wanted == "string" else ""
        if wanted == NOT_THERE:
            yield Problem(path, "is missing")
        elif wanted == "bytes" and isinstance(value, str):
            yield Problem(path, "is not base64", "write the text itself under stringData")
        elif wanted != UNKNOWN:
            words = "a list" if wanted.startswith("[]") else _TYPES.get(wanted, "a mapping (key: value)")
            yield Problem(path, f"must be {words}, not {_type_name(value)}", hint)


_TYPES: Final = {
    "string": "text",
    "bytes": "text",
    "boolean": "true or false",
    "int32": "a number",
    "intOrString": "a number or text",
    "quantity": "an amount",
}


def _type_name(value: object) -> str:
    """The type of a value. The value itself may be a secret."""
    names = {str: "text", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "a mapping"}
    return names.get(type(value), "nothing" if value is None else type(value).__name__)


def _duplicate_names(collector: _Collector) -> Iterator[FileProblem]:
    """Objects with the same name. The cluster would reject the second object after the first job has started."""
    seen: dict[tuple[str, str, str], YamlDocument] = {}
    for written in [*(entry.written for entry in collector.jobs), *collector.companions]:
        metadata = written.content.get("metadata") or {}
        kind = str(written.content["kind"])
        space = "" if kind == QUEUE else metadata.get("namespace") or "default"
        key = (kind, space, str(metadata.get("name")))
        if key in seen and metadata.get("name"):
            message = f"{key[0]} {key[2]} appears twice: in {_where(seen[key])} too"
            problem = Problem("metadata.name", message, "give one of them another name")
            yield FileProblem(written.file, written.number, written.line("metadata.name"), problem)
        seen[key] = written


def _where(written: YamlDocument) -> str:
    return f"{written.file}, document {written.number}" if written.number else written.file


def require_valid(bundle: JobFiles) -> JobFiles:
    """The files; InvalidFiles if they have errors."""
    if bundle.errors:
        raise InvalidFiles(bundle.problems)
    return bundle


def one_job(bundle: JobFiles) -> LoadedJob:
    """The only job of the files; InvalidFiles if there are none or several."""
    require_valid(bundle)
    if len(bundle.jobs) == 1:
        return bundle.jobs[0]
    if not bundle.jobs:
        first = bundle.companions[0]
        problem = Problem("", "there is no job in it", "a job starts with apiVersion: kubeflow.org/v1, kind: TFJob")
        raise InvalidFiles([FileProblem(first.file, None, 0, problem)])
    second = bundle.jobs[1].written
    names = ", ".join(entry.job.key.name for entry in bundle.jobs)
    problem = Problem("", f"one job is run at a time, and there are {len(bundle.jobs)}: {names}", _SEVERAL)
    raise InvalidFiles([FileProblem(second.file, second.number, second.line(""), problem)])


_SEVERAL: Final = "put each in a file of its own, or run them together: tf-dist local up, tf-dist submit"


def whole_text(found: FileProblem) -> str:
    """``problem_text`` with the hint. Warnings are marked."""
    hint = f" ({found.problem.hint})" if found.problem.hint else ""
    return f"{'warning: ' if found.warning else ''}{problem_text(found)}{hint}"


def problem_text(found: FileProblem) -> str:
    """``file:line: document 2: path: message``, without the hint."""
    place = f"{found.file}:{found.line}" if found.line else found.file
    document = f" document {found.number}:" if found.number else ""
    path = f" {found.problem.path}:" if found.problem.path else ""
    return f"{place}:{document}{path} {found.problem.message}"
