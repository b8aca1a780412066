"""Jobs, and what stands beside them in their files, into a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tf_dist.client.bundle import Entry, InvalidFiles
from tf_dist.client.companions import says
from tf_dist.client.jobs import StoredJob, no_namespace, not_installed
from tf_dist.client.yaml_files import FileProblem, Written
from tf_dist.cluster.api import TFJOBS, TFJOBS_V1ALPHA1, VOLCANO_JOBS, Cluster, Resource
from tf_dist.cluster.refusals import NotServed, PerhapsOurs
from tf_dist.core.model import Dialect
from tf_dist.errors import AlreadyExists, NotFound, Problem

WORKDIR: Final = "tf-dist.dev/workdir"
_KINDS: Final = {
    Dialect.TFJOB_V1: TFJOBS,
    Dialect.TFJOB_V1ALPHA1: TFJOBS_V1ALPHA1,
    Dialect.VOLCANO: VOLCANO_JOBS,
}


@dataclass(frozen=True, slots=True)
class Spaces:
    """Where the documents of files go: ``asked`` for on the command line, else ``usual``."""

    asked: str
    usual: str

    def of(self, written: Written) -> str:
        """The namespace of a document; InvalidFiles if it says another one than was asked for."""

        own = str((written.content.get("metadata") or {}).get("namespace") or "")
        if own and self.asked and own != self.asked:
            path = "metadata.namespace"
            problem = Problem(path, f"the file says {own}, --namespace says {self.asked}", "leave one of them out")
            raise InvalidFiles([FileProblem(written.file, written.number, written.line(path), problem)])
        return own or self.asked or self.usual


def kind_of(entry: Entry) -> Resource:
    """The kind of object that a job is stored as."""
    return _KINDS[entry.job.dialect]


def create_job(
    cluster: Cluster,
    entry: Entry,
    namespace: str,
    *,
    workdir: str | None = None,
    annotations: Mapping[str, str] | None = None,
) -> StoredJob:
    """Create a job; AlreadyExists, NotServed and NotFound say how to go on.

    ``workdir`` None is the file's folder, "" the cluster's own; ``annotations`` come on top of the job's.
    """
    resource = kind_of(entry)
    document = _document(entry, namespace, workdir, annotations or {})
    try:
        return StoredJob(resource, cluster.create(resource, namespace, document))
    except AlreadyExists as error:
        name = entry.job.key.name
        if isinstance(error, PerhapsOurs):
            stored = cluster.get(resource, namespace, name)
            if says(stored.get("spec"), document.get("spec")):
                return StoredJob(resource, stored)
        raise AlreadyExists(
            f"there is a job {name} in namespace {namespace} already",
            hint=f"tf-dist delete {name} --wait, or give this one another name: --set metadata.name={name}-2",
        ) from error
    except NotServed as error:
        raise not_installed(resource) from error
    except NotFound as error:
        raise no_namespace(error, namespace) from error


def _document(entry: Entry, namespace: str, workdir: str | None, more: Mapping[str, str]) -> dict[str, Any]:
    document = entry.document
    folder = _folder(entry.written.file) if workdir is None else workdir
    own = document["metadata"].get("annotations") or {}
    annotations = {**({WORKDIR: folder} if folder else {}), **own, **more}
    metadata = {**document["metadata"], "namespace": namespace, **({"annotations": annotations} if annotations else {})}
    return {**document, "metadata": metadata}


def _folder(file: str) -> str:
    path = Path(file)
    return str(path.absolute().parent if path.is_file() else Path.cwd())
