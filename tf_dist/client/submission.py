"""Submission of jobs and of the companion objects of their files."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tf_dist.client.job_files import InvalidFiles, LoadedJob
from tf_dist.client.stored_jobs import StoredJob, definition_missing_error, namespace_missing_error
from tf_dist.client.yaml_files import FileProblem, YamlDocument
from tf_dist.cluster import api
from tf_dist.cluster.api import TFJOBS, TFJOBS_V1ALPHA1, VOLCANO_JOBS, Cluster, Object, Resource
from tf_dist.cluster.api_errors import AmbiguousCreate, NotServed
from tf_dist.core.model.job import Dialect
from tf_dist.core.model.names import ANNOTATION_PREFIX
from tf_dist.errors import AlreadyExists, Conflict, NotFound, Problem

COMPANION_OWNER: Final = f"{ANNOTATION_PREFIX}companion-of"
"""Annotation of a companion object: the job, as its file names it, that a ConfigMap, Secret, claim or Service stands
beside."""

_COMPANION_RESOURCES: Final = (api.CONFIG_MAPS, api.SECRETS, api.PERSISTENT_VOLUME_CLAIMS, api.SERVICES, api.QUEUES)
_TRIES: Final = 20


def companion_owner(written: YamlDocument, jobs: Iterable[LoadedJob]) -> str:
    """Whose a companion is: the first job of its file's, else the first of all; where there is none, the file's."""
    jobs = list(jobs)
    beside = [entry for entry in jobs if entry.written.file == written.file] or jobs
    return beside[0].job.key.name if beside else written.file.rpartition("/")[2]


def create_companion(cluster: Cluster, written: YamlDocument, namespace: str, *, owner: str) -> str:
    """Create an object that a job needs, or bring it up to date: ``created``, ``configured`` or ``unchanged``.

    One that is there already is written only if it is ``owner``'s; another's serves if it is what is asked for, else
    AlreadyExists. A queue has no owner. ClusterError.
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
    raise Conflict(f"{resource.kind} {name} changes faster than it can be written", hint="try again")


def _body(content: Mapping[str, Any], namespace: str | None, owner: str) -> Object:
    metadata = {key: value for key, value in content["metadata"].items() if key != "namespace"}
    if namespace:
        metadata["namespace"] = namespace
    if owner:
        metadata["annotations"] = {**(metadata.get("annotations") or {}), COMPANION_OWNER: owner}
    body = {key: value for key, value in content.items() if key != "stringData"}
    if content.get("stringData"):
        # The server keeps it like this, so that what is there can be compared with it.
        text = {key: base64.b64encode(str(value).encode()).decode() for key, value in content["stringData"].items()}
        body["data"] = {**(content.get("data") or {}), **text}
    return {**body, "metadata": metadata}


def _updated(cluster: Cluster, resource: Resource, namespace: str | None, body: Object) -> str:
    """What became of the object that is there; "" if it was changed or deleted meanwhile."""
    name = str(body["metadata"]["name"])
    try:
        stored = cluster.get(resource, namespace, name)
        if not _is_ours(stored, body):
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


def _is_ours(stored: Object, body: Object) -> bool:
    owner = (body["metadata"].get("annotations") or {}).get(COMPANION_OWNER)
    return owner is None or (stored["metadata"].get("annotations") or {}).get(COMPANION_OWNER) == owner


def _own(body: Object) -> Object:
    """Without what the server says of the kind itself."""
    return {key: value for key, value in body.items() if key not in ("apiVersion", "kind")}


def _change(stored: Object, body: Object) -> Object:
    """What is to be written: keys of a ConfigMap or Secret that are not in the file any more go."""
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
    whose = f"belongs to {theirs!r}" if theirs else "names no job as its own"
    take = (
        f"kubectl annotate -n {namespace} {resource.kind.lower()}/{name} --overwrite {COMPANION_OWNER}={_quoted(owner)}"
    )
    return AlreadyExists(
        f"{resource.kind} {name} in namespace {namespace} differs from the one beside the job, and {whose}",
        hint=f"give it another metadata.name, or, if it is to be this job's: {take}",
    )


def _quoted(text: str) -> str:
    return text if text.replace("-", "").isalnum() else f"'{text}'"


def includes(stored: Any, sent: Any) -> bool:
    """Whether a stored object says all that was sent; the server may have added what it takes for granted."""
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
    """Where the documents of files go: ``asked`` for on the command line, else ``usual``."""

    asked: str
    usual: str

    def of(self, written: YamlDocument) -> str:
        """The namespace of a document; InvalidFiles if it says another one than was asked for."""

        own = str((written.content.get("metadata") or {}).get("namespace") or "")
        if own and self.asked and own != self.asked:
            path = "metadata.namespace"
            problem = Problem(path, f"the file says {own}, --namespace says {self.asked}", "leave one of them out")
            raise InvalidFiles([FileProblem(written.file, written.number, written.line(path), problem)])
        return own or self.asked or self.usual


def job_resource(entry: LoadedJob) -> Resource:
    """The kind of object that a job is stored as."""
    return _JOB_RESOURCES[entry.job.dialect]


def create_job(
    cluster: Cluster,
    entry: LoadedJob,
    namespace: str,
    *,
    workdir: str | None = None,
) -> StoredJob:
    """Create a job; AlreadyExists, NotServed and NotFound say how to go on.

    ``workdir`` None is the file's folder, "" the cluster's own.
    """
    resource = job_resource(entry)
    document = _document(entry, namespace, workdir)
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
    """The folder of a file; the present one for what is none."""
    path = Path(file)
    return str(path.absolute().parent if path.is_file() else Path.cwd())
