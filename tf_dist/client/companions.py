"""What stands beside a job in its file: created, or brought up to date, where it is that job's."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tf_dist.client.bundle import Entry
from tf_dist.client.jobs import no_namespace, not_installed
from tf_dist.client.yaml_files import Written
from tf_dist.cluster import api
from tf_dist.cluster.api import Cluster, Object, Resource
from tf_dist.cluster.refusals import NotServed
from tf_dist.core.names import ANNOTATION_PREFIX
from tf_dist.errors import AlreadyExists, Conflict, NotFound

OWNER: Final = f"{ANNOTATION_PREFIX}companion-of"
"""The annotation that names the job (as its file calls it) that an object stands beside."""

_KINDS: Final = (api.CONFIG_MAPS, api.SECRETS, api.PERSISTENT_VOLUME_CLAIMS, api.SERVICES, api.QUEUES)
_TRIES: Final = 20


def owner_of(written: Written, jobs: Iterable[Entry]) -> str:
    """Whose a companion is: the first job of its file's, else the first of all; where there is none, the file's."""
    jobs = list(jobs)
    beside = [entry for entry in jobs if entry.written.file == written.file] or jobs
    return beside[0].job.key.name if beside else written.file.rpartition("/")[2]


def create_companion(cluster: Cluster, written: Written, namespace: str, *, owner: str) -> str:
    """Create an object that a job needs, or bring it up to date: ``created``, ``configured`` or ``unchanged``.

    One that is there already is written only if it is ``owner``'s; another's serves if it is what is asked for, else
    AlreadyExists. A queue has no owner. ClusterError.
    """
    resource = next(kind for kind in _KINDS if kind.kind == written.content["kind"])
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
            raise not_installed(resource) from error
        except NotFound as error:
            raise no_namespace(error, namespace) from error
        if done:
            return done
    raise Conflict(f"{resource.kind} {name} changes faster than it can be written", hint="try again")


def _body(content: Mapping[str, Any], namespace: str | None, owner: str) -> Object:
    metadata = {key: value for key, value in content["metadata"].items() if key != "namespace"}
    if namespace:
        metadata["namespace"] = namespace
    if owner:
        metadata["annotations"] = {**(metadata.get("annotations") or {}), OWNER: owner}
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
            if says({**stored, "metadata": None}, {**_own(body), "metadata": None}):
                return "unchanged"
            raise _foreign(resource, stored, body)
        change = _change(stored, body)
        if says(stored, change):
            return "unchanged"
        fenced = {**change["metadata"], "resourceVersion": stored["metadata"]["resourceVersion"]}
        cluster.patch(resource, namespace, name, {**change, "metadata": fenced})
    except (NotFound, Conflict):
        return ""
    return "configured"


def _is_ours(stored: Object, body: Object) -> bool:
    owner = (body["metadata"].get("annotations") or {}).get(OWNER)
    return owner is None or (stored["metadata"].get("annotations") or {}).get(OWNER) == owner


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
    metadata, owner = stored["metadata"], body["metadata"]["annotations"][OWNER]
    theirs = (metadata.get("annotations") or {}).get(OWNER)
    name, namespace = metadata["name"], metadata["namespace"]
    whose = f"belongs to {theirs!r}" if theirs else "names no job as its own"
    take = f"kubectl annotate -n {namespace} {resource.kind.lower()}/{name} --overwrite {OWNER}={_quoted(owner)}"
    return AlreadyExists(
        f"{resource.kind} {name} in namespace {namespace} differs from the one beside the job, and {whose}",
        hint=f"give it another metadata.name, or, if it is to be this job's: {take}",
    )


def _quoted(text: str) -> str:
    return text if text.replace("-", "").isalnum() else f"'{text}'"


def says(stored: Any, sent: Any) -> bool:
    """Whether a stored object says all that was sent; the server may have added what it takes for granted."""
    if isinstance(sent, Mapping):
        return isinstance(stored, Mapping) and all(says(stored.get(key), value) for key, value in sent.items())
    if isinstance(sent, list) and isinstance(stored, list) and len(stored) == len(sent):
        return all(map(says, stored, sent))
    return bool(stored == sent)
