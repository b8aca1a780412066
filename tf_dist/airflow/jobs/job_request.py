"""Job request: the document of a task, rendered, overridden, named and checked."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tf_dist.airflow.jobs.task_identity import sanitized_name
from tf_dist.airflow.templates import unfilled_problems
from tf_dist.client.job_files import InvalidFiles, JobFiles, LoadedJob, load_job_files, one_job
from tf_dist.client.yaml_files import YamlDocument
from tf_dist.cluster.api import TFJOBS, VOLCANO_JOBS, Resource
from tf_dist.core.dialects import StepOverrides, apply_step_overrides, current, dialect_of, parse
from tf_dist.core.dialects.code_folder import with_code_annotation
from tf_dist.core.dialects.common_annotations import queue_overrides
from tf_dist.core.model.fieldpath import mapping, parse_field_path
from tf_dist.core.model.job import Dialect
from tf_dist.core.model.names import CODE
from tf_dist.core.model.overrides import Override, apply_overrides, named_overrides, refuse_unknown_keys
from tf_dist.core.pipeline.run_options import is_template
from tf_dist.errors import InvalidJob, Problem

Render = Callable[[Any], Any]

NO_CHANGES: Final = StepOverrides()
_INTEGER: Final = re.compile(r"-?[0-9]{1,9}")
_UNQUOTED: Final = re.compile(r"""^[^'"#|>]*(\{\{|\{%)""")
_QUOTES: Final = 'write the value in quotes: "{{ … }}"; Airflow fills a file in after YAML has read it'
_IN_PYTHON: Final = "the task's job"


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The job of a task and its companion objects."""

    entry: LoadedJob
    """The job."""
    companions: tuple[YamlDocument, ...] = ()
    """Its companion objects."""
    folder: str = ""
    """The working directory of containers on nodes of this machine."""

    @property
    def namespace(self) -> str:
        """The namespace of the document; "" for none."""
        return str((self.entry.written.content.get("metadata") or {}).get("namespace") or "")

    @property
    def base_name(self) -> str:
        """The name of the document."""
        return self.entry.job.key.name

    @property
    def resource(self) -> Resource:
        """The kind of job."""
        return VOLCANO_JOBS if self.entry.job.dialect is Dialect.VOLCANO else TFJOBS


def job_request(
    job: object,
    folders: Sequence[Path],
    render: Render,
    *,
    companions: Sequence[YamlDocument] = (),
    overrides: Mapping[str, Any],
    changes: StepOverrides = NO_CHANGES,
    code: str = "",
    queue_name: str | None,
    name: str | None,
    default_name: str,
) -> JobRequest:
    """The request for a file or a document. InvalidJob lists all problems.

    :param job: The path of a file, or a document.
    :param folders: The folders in which relative paths are looked up.
    :param render: Fills in templates. Files are rendered after parsing, so that a value cannot become another field.
    :param companions: The companion objects of a document.
    :param overrides: Values of fields, by path. They are applied after ``changes``.
    :param code: The folder that is sent with the job.
    :param queue_name: The queue, instead of the document's.
    :param name: The name of the job, instead of the document's.
    :param default_name: The name of a job that has no name. It may be any text.
    """

    def changed(content: Any) -> Any:
        if changes != NO_CHANGES:
            content = apply_step_overrides(_with_numbers(_named(content, name, default_name)), changes)
        content = apply_overrides(content, named_overrides(overrides))
        if queue_name:
            content = apply_overrides(content, queue_overrides(content, dialect_of(content), queue_name))
        named = _with_numbers(_named(content, name, default_name))
        return _with_code(named, _path(code, folders) if code else None, base)

    base = folders[0]
    if isinstance(job, str):
        path = _path(job, folders)
        base = path.parent
        bundle = load_job_files([str(path)], change=lambda content: changed(_filled(content, render)))
        job_of_file = _asking_for_quotes(bundle, path)
        found = JobRequest(job_of_file, _rendered(bundle.companions, render), str(path.absolute().parent))
    elif isinstance(job, Mapping):
        content = current(changed(dict(job)))
        written = YamlDocument(_IN_PYTHON, None, content, None)
        beside = _rendered(companions, render)
        found = JobRequest(LoadedJob(written, parse(content, strict=False)), beside, str(folders[0]))
    else:
        raise InvalidJob([job_type_problem(job)])
    refuse_unknown_keys(named_overrides(overrides), found.entry.parsed.warnings)
    return found


def _path(named: str, folders: Sequence[Path]) -> Path:
    """The path of a file or folder. If no candidate exists, the first candidate."""
    given = Path(os.path.expanduser(named))
    places = [folder / given for folder in folders]
    return next((place for place in (*places, given) if os.path.exists(place)), places[0])


def is_document_text(job: str) -> bool:
    """Whether a text is a document instead of a path. A template turns a mapping into such a text."""
    return "\n" in job.strip() or (job.lstrip()[:1] in ("{", "[") and not is_template(job))


def _filled(content: Any, render: Render) -> Any:
    found = render(content)
    if problems := [*unfilled_problems(content, found)]:
        raise InvalidJob(problems)
    return found


def _asking_for_quotes(bundle: JobFiles, path: Path) -> LoadedJob:
    """The job of a file. Reports unquoted templates, which YAML reads as mappings or rejects with unclear errors."""
    try:
        return one_job(bundle)
    except InvalidFiles as error:
        if not os.path.isfile(path):
            raise
        lines = ["", *path.read_text(errors="replace").splitlines()]
        quotes = Problem("", "a template is not quoted", _QUOTES)
        found = (
            replace(one, problem=replace(quotes, path=one.problem.path))
            if one.line < len(lines) and _UNQUOTED.search(lines[one.line])
            else one
            for one in error.found
        )
        raise InvalidFiles(found) from None


def job_type_problem(job: object) -> Problem:
    """The problem of a ``job`` argument of a wrong type."""
    what = f"must be the path of a file, a dict, or a TFJob, not {type(job).__name__}"
    return Problem("job", what, 'write job="jobs/digits.yaml"')


def request_of_try(
    request: JobRequest,
    *,
    name: str,
    namespace: str,
    labels: Mapping[str, str],
    notes: Mapping[str, str],
    changed: Callable[[dict[str, Any]], None] = lambda _: None,
) -> JobRequest:
    """The request with another name, and with more labels and annotations. Raises InvalidJob.

    ``changed`` may change a copy of the document in place, except its name.
    """
    written = request.entry.written
    content = copy.deepcopy(dict(written.content))
    changed(content)
    metadata = {key: value for key, value in content["metadata"].items() if key != "generateName"}
    own_labels, own_notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    metadata |= {"name": name, "namespace": namespace}
    metadata |= {"labels": {**own_labels, **labels}, "annotations": {**own_notes, **notes}}
    content = {**content, "metadata": metadata}
    return replace(request, entry=LoadedJob(replace(written, content=content), parse(content, strict=False)))


def _rendered(companions: Iterable[YamlDocument], render: Render) -> tuple[YamlDocument, ...]:
    return tuple(replace(one, content=render(one.content)) for one in companions)


def _named(content: Any, name: str | None, default: str) -> Any:
    """The document with a name. A document with ``generateName`` gets the name of the task."""
    if not isinstance(content, Mapping) or not isinstance(content.get("metadata"), Mapping | None):
        return content  # the dialect reports the problem
    given = content.get("metadata") or {}
    chosen = name or given.get("name") or str(given.get("generateName") or "").rstrip("-.") or sanitized_name(default)
    return {**content, "metadata": {**given, "name": chosen}}


def _with_code(content: Any, folder: Path | None, beside: Path) -> Any:
    """The document with the folder to send, by its absolute path. The folder is packed when the task runs."""
    if not isinstance(content, Mapping) or not isinstance(content.get("metadata"), Mapping):
        return content
    named = mapping(content["metadata"].get("annotations")).get(CODE)
    if folder is None and named:
        folder = beside / os.path.expanduser(str(named))
    return with_code_annotation(content, str(folder.absolute())) if folder else content


def _with_numbers(content: Any) -> Any:
    """The document with text replaced by numbers where its format needs numbers, because Jinja renders only text."""
    wrong = _problems(content)
    spelled = [number for problem in wrong if (number := _number(content, problem.path)) is not None]
    changed = apply_overrides(content, spelled) if spelled else content
    return changed if spelled and len(_problems(changed)) < len(wrong) else content


def _problems(content: Any) -> tuple[Problem, ...]:
    try:
        parse(content, strict=False)
    except InvalidJob as error:
        return error.problems
    return ()


def _number(content: Any, path: str) -> Override | None:
    """The override that replaces the text at a path with the whole number that the text spells."""
    try:
        steps = parse_field_path(path)
        for step in steps:
            content = content[step]
    except (ValueError, LookupError, TypeError):
        return None
    return Override(steps, int(content)) if isinstance(content, str) and _INTEGER.fullmatch(content) else None
