"""Submission of jobs and their companion objects."""

from __future__ import annotations

import base64
import os
import posixpath
import re
import secrets
import shlex
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata as distributions
from pathlib import Path
from typing import Any, Final

from tf_dist.client.code_archive import existing_folder, pack_code
from tf_dist.client.job_files import InvalidFiles, JobFiles, LoadedJob
from tf_dist.client.stored_jobs import StoredJob, definition_missing_error, namespace_missing_error
from tf_dist.client.yaml_files import FileProblem, YamlDocument
from tf_dist.cluster import api
from tf_dist.cluster.api import CONFIG_MAPS, TFJOBS, TFJOBS_V1ALPHA1, VOLCANO_JOBS, Cluster, Object, Resource
from tf_dist.cluster.api_errors import AmbiguousCreate, NotServed
from tf_dist.core.model.job import Dialect
from tf_dist.core.model.names import ANNOTATION_PREFIX, CODE, EMULATED, PACKAGES
from tf_dist.errors import AlreadyExists, ClusterError, Conflict, Forbidden, InvalidJob, NotFound, Problem

COMPANION_OWNER: Final = f"{ANNOTATION_PREFIX}companion-of"
"""Annotation of a companion object (ConfigMap, Secret, claim or Service): the job in the same file."""

_COMPANION_RESOURCES: Final = (api.CONFIG_MAPS, api.SECRETS, api.PERSISTENT_VOLUME_CLAIMS, api.SERVICES, api.QUEUES)
_TRIES: Final = 20


def companion_owner(written: YamlDocument, jobs: Iterable[LoadedJob]) -> str:
    """The owner of a companion: the first job of its file, or else of all files; without jobs, the file."""
    jobs = list(jobs)
    beside = [entry for entry in jobs if entry.written.file == written.file] or jobs
    return beside[0].job.key.name if beside else written.file.rpartition("/")[2]


def create_companion(cluster: Cluster, written: YamlDocument, namespace: str, *, owner: str) -> str:
    """Create or update a companion object: ``created``, ``configured`` or ``unchanged``. ClusterError.

    An existing object is updated only if it belongs to ``owner``. An object of another owner is used if it has the
    same content. Otherwise AlreadyExists is raised. A queue has no owner.
    """
    resource = next(kind for kind in _COMPANION_RESOURCES if kind.kind == written.content["kind"])
    where = namespace if resource.namespaced else None
    body = _body(written.content, where, owner if resource.namespaced else "")
    name = str(body["metadata"]["name"])
    for _ in range(_TRIES):
        try:
            cluster.create(resource, where, body)
            return "created"
        except AlreadyExists:
            done = _updated(cluster, resource, where, body)
        except NotServed as error:
            raise definition_missing_error(resource) from error
        except NotFound as error:
            raise namespace_missing_error(error, namespace) from error
        if done:
            return done
    raise Conflict(f"{resource.kind} {name} keeps changing while tf-dist writes it", hint="try again")


def _body(content: Mapping[str, Any], namespace: str | None, owner: str) -> Object:
    metadata = {key: value for key, value in content["metadata"].items() if key != "namespace"}
    if namespace:
        metadata["namespace"] = namespace
    if owner:
        metadata["annotations"] = {**(metadata.get("annotations") or {}), COMPANION_OWNER: owner}
    body = {key: value for key, value in content.items() if key != "stringData"}
    if content.get("stringData"):
        # The server stores text as base64 data. The stored object is compared with the data in this form.
        text = {key: base64.b64encode(str(value).encode()).decode() for key, value in content["stringData"].items()}
        body["data"] = {**(content.get("data") or {}), **text}
    return {**body, "metadata": metadata}


def _updated(cluster: Cluster, resource: Resource, namespace: str | None, body: Object) -> str:
    """The result for an existing object; "" if it was changed or deleted meanwhile."""
    name = str(body["metadata"]["name"])
    try:
        stored = cluster.get(resource, namespace, name)
        owner = (body["metadata"].get("annotations") or {}).get(COMPANION_OWNER)
        if owner not in (None, (stored["metadata"].get("annotations") or {}).get(COMPANION_OWNER)):
            if includes({**stored, "metadata": None}, {**_own(body), "metadata": None}):
                return "unchanged"
            raise _foreign(resource, stored, body)
        change = _change(stored, body)
        if includes(stored, change):
            return "unchanged"
        fenced = {**change["metadata"], "resourceVersion": stored["metadata"]["resourceVersion"]}
        cluster.patch(resource, namespace, name, {**change, "metadata": fenced})
    except (NotFound, Conflict):
        return ""
    return "configured"


def _own(body: Object) -> Object:
    """The object without the fields that name its kind."""
    return {key: value for key, value in body.items() if key not in ("apiVersion", "kind")}


def _change(stored: Object, body: Object) -> Object:
    """The patch. Keys of a ConfigMap or Secret that are no longer in the file are removed."""
    change = _own(body)
    for part in ("data", "binaryData") if body["kind"] in ("ConfigMap", "Secret") else ():
        gone = dict.fromkeys((stored.get(part) or {}).keys() - (body.get(part) or {}).keys())
        if gone or part in body:
            change[part] = {**gone, **(body.get(part) or {})}
    return change


def _foreign(resource: Resource, stored: Object, body: Object) -> AlreadyExists:
    metadata, owner = stored["metadata"], body["metadata"]["annotations"][COMPANION_OWNER]
    theirs = (metadata.get("annotations") or {}).get(COMPANION_OWNER)
    name, namespace = metadata["name"], metadata["namespace"]
    whose = f"belongs to {theirs!r}" if theirs else "does not name the job that it belongs to"
    take = (
        f"kubectl annotate -n {namespace} {resource.kind.lower()}/{name} --overwrite {COMPANION_OWNER}={_quoted(owner)}"
    )
    return AlreadyExists(
        f"{resource.kind} {name} in namespace {namespace} differs from the one in the job's file, and {whose}",
        hint=f"give it another metadata.name, or make it this job's: {take}",
    )


def _quoted(text: str) -> str:
    return text if text.replace("-", "").isalnum() else f"'{text}'"


def includes(stored: Any, sent: Any) -> bool:
    """Whether a stored object has everything that was sent. The server may have added defaults."""
    if isinstance(sent, Mapping):
        return isinstance(stored, Mapping) and all(includes(stored.get(key), value) for key, value in sent.items())
    if isinstance(sent, list) and isinstance(stored, list) and len(stored) == len(sent):
        return all(map(includes, stored, sent))
    return bool(stored == sent)


WORKDIR: Final = "tf-dist.dev/workdir"
_JOB_RESOURCES: Final = {
    Dialect.TFJOB_V1: TFJOBS,
    Dialect.TFJOB_V1ALPHA1: TFJOBS_V1ALPHA1,
    Dialect.VOLCANO: VOLCANO_JOBS,
}


@dataclass(frozen=True, slots=True)
class TargetNamespaces:
    """The namespaces of documents."""

    asked: str
    """The namespace of the command line; "" for none."""
    usual: str
    """The default namespace."""

    def of(self, written: YamlDocument) -> str:
        """The namespace of a document; InvalidFiles if the command line names a different namespace."""

        own = str((written.content.get("metadata") or {}).get("namespace") or "")
        if own and self.asked and own != self.asked:
            path = "metadata.namespace"
            problem = Problem(path, f"the file says {own}, --namespace says {self.asked}", "leave one of them out")
            raise InvalidFiles([FileProblem(written.file, written.number, written.line(path), problem)])
        return own or self.asked or self.usual


def job_resource(entry: LoadedJob) -> Resource:
    """The resource of a job."""
    return _JOB_RESOURCES[entry.job.dialect]


def create_job(
    cluster: Cluster,
    entry: LoadedJob,
    namespace: str,
    *,
    workdir: str | None = None,
    archive: bytes = b"",
) -> StoredJob:
    """Create a job and the objects that it owns. AlreadyExists, NotServed and NotFound have hints.

    ``workdir``: None for the folder of the file, "" for the default of the cluster. ``archive``: the packed code.
    """
    document, code = _with_code(cluster, _document(entry, namespace, workdir), entry, archive)
    document = _with_packages(cluster, document)
    stored = _create_document(cluster, entry, namespace, document)
    if owned := [*entry.owned, *code]:
        _create_owned(cluster, stored, owned)
    return stored


def code_archive(cluster: Cluster, entry: LoadedJob) -> bytes:
    """The packed code of a job for this cluster; b"" if there is none, or the pods use the folder itself. InvalidJob.

    Call it before anything is created, so that no objects remain if a folder cannot be sent.
    """
    folder = _code_folder(entry)
    if folder is not None and _is_this_machine(cluster):
        existing_folder(folder)
        return b""
    return _packed(entry)


def _packed(entry: LoadedJob) -> bytes:
    folder = _code_folder(entry)
    if folder is None:
        return b""
    from tf_dist.core.dialects.code_folder import inner_folder  # slow to import
    from tf_dist.core.dialects.step_overrides import training_containers

    words = [
        posixpath.join(inner_folder(container), str(word))
        for _, _, container, _ in training_containers(entry.document)
        for word in container.get("command") or ()
    ]
    return pack_code(folder, words)


def _with_code(
    cluster: Cluster, document: dict[str, Any], entry: LoadedJob, archive: bytes
) -> tuple[dict[str, Any], tuple[Object, ...]]:
    """The document with its code, and the ConfigMaps of the code; InvalidJob."""
    from tf_dist.core.dialects.code_folder import with_code_archive, with_code_here  # slow to import

    folder = _code_folder(entry)
    archive = archive or code_archive(cluster, entry)
    if folder is None and not archive:
        archive = _code_of_earlier_job(cluster, document)
        if not archive:
            return document, ()
    if not archive:
        return with_code_here(document, existing_folder(folder or ".")), ()
    return with_code_archive(document, archive, secrets.token_hex(_NONCE))


def _with_packages(cluster: Cluster, document: dict[str, Any]) -> dict[str, Any]:
    """The document with pods that install its packages. On this machine they must be installed, or InvalidJob."""
    if PACKAGES not in (document["metadata"].get("annotations") or {}):
        return document
    from tf_dist.core.dialects.code_folder import packages_of, with_packages

    packages = packages_of(document)
    if not _is_this_machine(cluster):
        return with_packages(document, packages)
    problems = [
        Problem(
            "packages",
            f"{package} is not installed for {sys.executable}, with which replicas run on this machine",
            f"{shlex.quote(sys.executable)} -m pip install {shlex.quote(package)}",
        )
        for package in packages
        if not _is_installed(package)
    ]
    if problems:
        raise InvalidJob(problems)
    return document


def _is_installed(package: str) -> bool:
    """Whether a package is installed in a suitable version. Without ``packaging``, any version is suitable."""
    try:
        version = distributions.version(re.split(r"[\[<>=!~]", package, maxsplit=1)[0])
    except distributions.PackageNotFoundError:
        return False
    with suppress(ImportError):
        from packaging.requirements import InvalidRequirement, Requirement

        with suppress(InvalidRequirement):
            return Requirement(package).specifier.contains(version, prereleases=True)
    return True


def _code_of_earlier_job(cluster: Cluster, document: Mapping[str, Any]) -> bytes:
    """The code of the job from which a document was exported (``kubectl get -o yaml``). It is deleted with that job.

    b"" for a document without code, and for ConfigMaps that no job owns or that cannot be read. InvalidJob if they
    were deleted.
    """
    from tf_dist.core.dialects.code_folder import code_archive_of, code_parts

    parts: list[Object] = []
    for name in code_parts(document):
        try:
            parts.append(cluster.get(CONFIG_MAPS, document["metadata"]["namespace"], name))
        except Forbidden:
            return b""
        except NotFound as error:
            what = f"the pods mount code in ConfigMap {name}, which was deleted with the job that it was submitted with"
            hint = "submit the job with its code: --code DIR"
            raise InvalidJob([Problem("spec", what, hint)]) from error
    return code_archive_of(parts) if all(one["metadata"].get("ownerReferences") for one in parts) else b""


def submitted_documents(files: JobFiles, *, packed: bool) -> list[dict[str, Any]]:
    """The documents that are submitted, in order. ``packed``: with the code for a cluster; InvalidJob."""
    from tf_dist.core.dialects.code_folder import packages_of, with_code_archive, with_packages

    documents = [dict(written.content) for written in files.companions]
    for entry in files.jobs:
        document, parts = dict(entry.document), tuple[Object, ...]()
        if packed and (archive := _packed(entry)):
            document, parts = with_code_archive(document, archive, secrets.token_hex(_NONCE))
        if packed and (packages := packages_of(document)):
            document = with_packages(document, packages)
        documents += [*parts, document]
    return documents


def _code_folder(entry: LoadedJob) -> Path | None:
    """The folder that is sent with a job; None for none."""
    named = (entry.document["metadata"].get("annotations") or {}).get(CODE)
    return Path(file_folder(entry.written.file), os.path.expanduser(named)) if named else None


def with_code_on_this_machine(entry: LoadedJob) -> LoadedJob:
    """The job with the folder of its code as working directory, for pods on this machine; InvalidJob."""
    folder = _code_folder(entry)
    if folder is None:
        return entry
    from tf_dist.core.dialects import parse
    from tf_dist.core.dialects.code_folder import with_code_here

    content = with_code_here(entry.document, existing_folder(folder))
    return replace(entry, written=replace(entry.written, content=content), parsed=parse(content, strict=False))


_NONCE: Final = 3  # bytes


def _is_this_machine(cluster: Cluster) -> bool:
    """Whether pods are processes of this machine. False if nodes may not be listed."""
    try:
        return bool(cluster.list(api.NODES, None, labels=EMULATED).items)
    except ClusterError:
        return False


def _create_owned(cluster: Cluster, job: StoredJob, objects: Iterable[Mapping[str, Any]]) -> None:
    """Create the parts of the code and the variables, which are deleted with their job. If that fails, delete the job.

    They are created after the job, because they name it as their owner.
    """
    owner = {"apiVersion": job.resource.api_version, "kind": job.resource.kind, "name": job.name, "uid": job.uid}
    try:
        for one in objects:
            resource = next(kind for kind in _COMPANION_RESOURCES if kind.kind == one["kind"])
            body = {**one, "metadata": {**one["metadata"], "namespace": job.namespace, "ownerReferences": [owner]}}
            with suppress(AlreadyExists):  # only this job uses the name: the response to an earlier create was lost
                cluster.create(resource, job.namespace, body)
    except ClusterError:
        with suppress(ClusterError):
            cluster.delete(job.resource, job.namespace, job.name, uid=job.uid)
        raise


def _create_document(cluster: Cluster, entry: LoadedJob, namespace: str, document: dict[str, Any]) -> StoredJob:
    resource = job_resource(entry)
    try:
        return StoredJob(resource, cluster.create(resource, namespace, document))
    except AlreadyExists as error:
        name = entry.job.key.name
        if isinstance(error, AmbiguousCreate):
            stored = cluster.get(resource, namespace, name)
            if includes(stored.get("spec"), document.get("spec")):
                return StoredJob(resource, stored)
        raise AlreadyExists(
            f"there is a job {name} in namespace {namespace} already",
            hint=f"tf-dist delete {name} --wait, or give this one another name: --set metadata.name={name}-2",
        ) from error
    except NotServed as error:
        raise definition_missing_error(resource) from error
    except NotFound as error:
        raise namespace_missing_error(error, namespace) from error


def _document(entry: LoadedJob, namespace: str, workdir: str | None) -> dict[str, Any]:
    document = entry.document
    folder = file_folder(entry.written.file) if workdir is None else workdir
    own = document["metadata"].get("annotations") or {}
    annotations = {**({WORKDIR: folder} if folder else {}), **own}
    metadata = {**document["metadata"], "namespace": namespace, **({"annotations": annotations} if annotations else {})}
    return {**document, "metadata": metadata}


def file_folder(file: str) -> str:
    """The folder of a file; the current folder for other texts."""
    path = Path(file)
    return str(path.absolute().parent if os.path.isfile(path) else Path.cwd())
