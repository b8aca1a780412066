"""``tf-dist submit``: jobs into a cluster."""

from __future__ import annotations

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
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Where to, if the file does not say.")] = "",
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
    cluster = connect()
    for written in bundle.companions:
        create_companion(cluster, written, namespace or _namespace(written))
        output.line(f"{written.content['kind'].lower()}/{written.content['metadata']['name']} created")
    created = [create_job(cluster, entry, namespace) for entry in bundle.jobs]
    for job in created:
        output.line(f"{job.shown} submitted")
    output.flush()
    if wait:
        wait_for(cluster, created, "finished", limit)


def _namespace(written: Written) -> str:
    return str((written.content.get("metadata") or {}).get("namespace") or "default")


def create_companion(cluster: Cluster, written: Written, namespace: str) -> None:
    """Create an object that a job needs; one that is there already is brought up to date."""
    from tf_dist.cluster import api
    from tf_dist.errors import AlreadyExists

    kinds = (api.CONFIG_MAPS, api.SECRETS, api.PERSISTENT_VOLUME_CLAIMS, api.SERVICES)
    resource = next(kind for kind in kinds if kind.kind == written.content["kind"])
    body = {**written.content, "metadata": {**written.content["metadata"], "namespace": namespace}}
    try:
        cluster.create(resource, namespace, body)
    except AlreadyExists:
        cluster.patch(resource, namespace, body["metadata"]["name"], body)


def create_job(cluster: Cluster, entry: Entry, namespace: str = "", *, workdir: str | None = None) -> StoredJob:
    """Create a job; AlreadyExists says how to go on. ``workdir`` None is the file's folder, "" the cluster's own."""
    from tf_dist.cli.jobs import StoredJob
    from tf_dist.cluster.api import TFJOBS, TFJOBS_V1ALPHA1, VOLCANO_JOBS
    from tf_dist.core.model import Dialect
    from tf_dist.errors import AlreadyExists

    resource = {
        Dialect.TFJOB_V1: TFJOBS,
        Dialect.TFJOB_V1ALPHA1: TFJOBS_V1ALPHA1,
        Dialect.VOLCANO: VOLCANO_JOBS,
    }[entry.job.dialect]
    where = namespace or entry.job.key.namespace
    try:
        stored = cluster.create(resource, where, _document(entry, where, workdir))
    except AlreadyExists as error:
        name = entry.job.key.name
        raise AlreadyExists(
            f"there is a job {name} in namespace {where} already",
            hint=f"tf-dist delete {name} --wait, or give this one another name: --set metadata.name={name}-2",
        ) from error
    return StoredJob(resource, stored)


def _document(entry: Entry, namespace: str, workdir: str | None) -> dict[str, Any]:
    document = entry.document
    metadata = {**document["metadata"], "namespace": namespace}
    folder = _folder(entry.written.file) if workdir is None else workdir
    if folder:
        metadata["annotations"] = {WORKDIR: folder, **(metadata.get("annotations") or {})}
    return {**document, "metadata": metadata}


def _folder(file: str) -> str:
    path = Path(file)
    return str(path.absolute().parent if path.is_file() else Path.cwd())
