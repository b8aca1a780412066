"""``tf-dist submit``: jobs into a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tf_dist.cli import options, output

if TYPE_CHECKING:
    from tf_dist.cli.bundle import Entry
    from tf_dist.cli.jobs import StoredJob
    from tf_dist.cli.yaml_files import Written
    from tf_dist.cluster.api import Cluster

WORKDIR: Final = "tf-dist.dev/workdir"


def submit(
    files: options.Files,
    namespace: options.Target = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
    changes: options.Set = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until every job has finished.")] = False,
    timeout: options.Timeout = "",
) -> None:
    """Submit jobs, and what stands beside them in their files, to the cluster.

    On the local cluster relative commands run in the folder of the file (annotation tf-dist.dev/workdir).
    """
    from tf_dist.cli.arguments import seconds
    from tf_dist.cli.bundle import load, require
    from tf_dist.cli.connect import connect
    from tf_dist.cli.waiting import wait_for

    bundle, limit = require(load(files, changes or ())), seconds(timeout)
    connection = connect(kubeconfig, context, local=local)
    cluster, spaces = connection.cluster, Spaces(namespace, connection.namespace)
    jobs = [(entry, spaces.of(entry.written)) for entry in bundle.jobs]
    companions = [(written, spaces.of(written)) for written in bundle.companions]
    connection.announce(", ".join(sorted({where for _, where in (*jobs, *companions)})))
    for written, where in companions:
        create_companion(cluster, written, where)
        output.line(f"{written.content['kind'].lower()}/{written.content['metadata']['name']} created")
    # Of which folder a file is tells a node on this machine something, and nobody else.
    created = [create_job(cluster, entry, where, workdir=None if connection.here else "") for entry, where in jobs]
    for job in created:
        output.line(f"{job.shown} submitted")
    output.flush()
    if wait:
        wait_for(cluster, created, "finished", limit)


@dataclass(frozen=True, slots=True)
class Spaces:
    """Where the documents of files go: ``asked`` for on the command line, else ``usual``."""

    asked: str
    usual: str

    def of(self, written: Written) -> str:
        """The namespace of a document; InvalidFiles if it says another one than was asked for."""
        from tf_dist.cli.bundle import InvalidFiles
        from tf_dist.cli.yaml_files import FileProblem
        from tf_dist.errors import Problem

        own = str((written.content.get("metadata") or {}).get("namespace") or "")
        if own and self.asked and own != self.asked:
            path = "metadata.namespace"
            problem = Problem(path, f"the file says {own}, --namespace says {self.asked}", "leave one of them out")
            raise InvalidFiles([FileProblem(written.file, written.number, written.line(path), problem)])
        return own or self.asked or self.usual


def create_companion(cluster: Cluster, written: Written, namespace: str) -> None:
    """Create an object that a job needs; one that is there already is brought up to date."""
    from tf_dist.cli.jobs import no_namespace, not_installed
    from tf_dist.cluster import api
    from tf_dist.cluster.refusals import NotServed
    from tf_dist.errors import AlreadyExists, NotFound

    kinds = (api.CONFIG_MAPS, api.SECRETS, api.PERSISTENT_VOLUME_CLAIMS, api.SERVICES, api.QUEUES)
    resource = next(kind for kind in kinds if kind.kind == written.content["kind"])
    where = namespace if resource.namespaced else None
    metadata = {key: value for key, value in written.content["metadata"].items() if key != "namespace"}
    body = {**written.content, "metadata": {**metadata, **({"namespace": where} if where else {})}}
    try:
        cluster.create(resource, where, body)
    except AlreadyExists:
        cluster.patch(resource, where, body["metadata"]["name"], body)
    except NotServed as error:
        raise not_installed(resource) from error
    except NotFound as error:
        raise no_namespace(error, namespace) from error


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
    from tf_dist.cli.jobs import StoredJob, no_namespace, not_installed
    from tf_dist.cluster.api import TFJOBS, TFJOBS_V1ALPHA1, VOLCANO_JOBS
    from tf_dist.cluster.refusals import NotServed, PerhapsOurs
    from tf_dist.core.model import Dialect
    from tf_dist.errors import AlreadyExists, NotFound

    resource = {
        Dialect.TFJOB_V1: TFJOBS,
        Dialect.TFJOB_V1ALPHA1: TFJOBS_V1ALPHA1,
        Dialect.VOLCANO: VOLCANO_JOBS,
    }[entry.job.dialect]
    document = _document(entry, namespace, workdir, annotations or {})
    try:
        return StoredJob(resource, cluster.create(resource, namespace, document))
    except AlreadyExists as error:
        name = entry.job.key.name
        if isinstance(error, PerhapsOurs):
            stored = cluster.get(resource, namespace, name)
            if _says(stored.get("spec"), document.get("spec")):
                return StoredJob(resource, stored)
        raise AlreadyExists(
            f"there is a job {name} in namespace {namespace} already",
            hint=f"tf-dist delete {name} --wait, or give this one another name: --set metadata.name={name}-2",
        ) from error
    except NotServed as error:
        raise not_installed(resource) from error
    except NotFound as error:
        raise no_namespace(error, namespace) from error


def _says(stored: Any, sent: Any) -> bool:
    """Whether a stored object says all that was sent; the server may have added what it takes for granted."""
    if isinstance(sent, Mapping):
        return isinstance(stored, Mapping) and all(_says(stored.get(key), value) for key, value in sent.items())
    return bool(stored == sent)


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
