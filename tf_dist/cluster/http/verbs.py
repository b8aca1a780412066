"""The verbs of the REST dialect over a MemoryCluster: one method per verb, from a request to a reply."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tf_dist.cluster.api import PatchType, Resource, Stream, WatchEvent
from tf_dist.cluster.http.calls import Call, object_of, options_of, success
from tf_dist.cluster.http.messages import APPLY, Reply, Request, Streamed, line
from tf_dist.cluster.http.pod_verbs import POD_SUBRESOURCES
from tf_dist.cluster.http.routes import Route
from tf_dist.cluster.memory.cluster import MemoryCluster
from tf_dist.cluster.memory.objects import edited
from tf_dist.cluster.refusals import MethodNotAllowed, UnsupportedMedia
from tf_dist.cluster.status import status_of
from tf_dist.errors import ClusterError, NotFound

# As an API server: a watch without a wish ends after a while, so that clients spread over restarts.
_WATCH_SECONDS = 1800
# The kinds whose removal answers with the object instead of a Status.
_RETURNED = frozenset({"pods", "services", "persistentvolumeclaims", "serviceaccounts"})


def located(cluster: MemoryCluster, request: Request, route: Route) -> Call:
    """The request with the kind that its place names; NotFound."""
    kind = cluster.kinds.find(route.group, route.version, route.plural)
    if route.namespace and not kind.resource.namespaced:
        raise NotFound("the server could not find the requested resource")
    own = kind.resource
    resource = Resource(own.group, route.version, own.kind, own.plural, own.namespaced)
    return Call(cluster, request, route, kind, resource)


def answer(call: Call) -> Reply | Streamed:
    """Do what the request asks; ClusterError."""
    method, route = call.request.method, call.route
    verbs: Mapping[str, Callable[[Call], Reply | Streamed]]
    if not route.name:
        verbs = {"GET": _collection, "POST": _create, "DELETE": _delete_collection}
    elif route.subresource in ("", "status"):
        verbs = {"GET": _get, "PUT": _replace, "PATCH": _patch}
        verbs = verbs if route.subresource else {**verbs, "DELETE": _delete}
    else:
        verbs = POD_SUBRESOURCES.get(route.subresource, {}) if call.kind.key == "pods" else {}
        if not verbs:
            raise NotFound("the server could not find the requested resource")
    if method not in verbs:
        raise MethodNotAllowed("the server does not allow this method on the requested resource")
    return verbs[method](call)


# Reading


def _get(call: Call) -> Reply:
    if call.route.subresource and not call.kind.status:
        raise NotFound("the server could not find the requested resource")
    return call.shown(call.cluster.get(call.resource, call.space, call.route.name))


def _collection(call: Call) -> Reply | Streamed:
    query = call.request.query
    if call.request.flag("watch"):
        return _watch(call)
    found = call.cluster.list(
        call.resource,
        call.space,
        labels=query.get("labelSelector", ""),
        fields=query.get("fieldSelector", ""),
        limit=call.request.number("limit") or 0,
        continue_=query.get("continue", ""),
    )
    return Reply(200, call.shape.many(found))


def _watch(call: Call) -> Streamed:
    query = call.request.query
    timeout = call.request.number("timeoutSeconds") or _WATCH_SECONDS
    initial = call.request.flag("sendInitialEvents")
    stream = call.cluster.watch(
        call.resource,
        call.space,
        labels=query.get("labelSelector", ""),
        fields=query.get("fieldSelector", ""),
        since="" if initial else query.get("resourceVersion", ""),
        timeout=timeout,
        initial_end=initial,
    )
    return Streamed(_events(call, stream), stream.close)


def _events(call: Call, stream: Stream[WatchEvent]) -> Iterator[bytes]:
    shape = call.shape
    bookmarks = call.request.flag("allowWatchBookmarks")
    try:
        for event in stream:
            if event.type == "BOOKMARK":
                if bookmarks:
                    yield line({"type": event.type, "object": shape.one(event.object)})
            else:
                yield line({"type": event.type, "object": shape.one(event.object)})
    except ClusterError as error:
        yield line({"type": "ERROR", "object": status_of(error)})


# Writing


def _create(call: Call) -> Reply:
    body = object_of(call)
    return call.shown(call.cluster.create(call.resource, call.space, body, dry_run=call.request.dry_run), 201)


def _replace(call: Call) -> Reply:
    obj = call.cluster.replace(
        call.resource,
        call.space,
        call.route.name,
        object_of(call),
        subresource=call.route.subresource,
        dry_run=call.request.dry_run,
    )
    return call.shown(obj)


def _patch(call: Call) -> Reply:
    media = call.request.content_type.partition(";")[0].strip().lower()
    route, dry_run = call.route, call.request.dry_run
    if media == APPLY:
        obj, created = call.cluster.apply(
            call.resource, call.space, route.name, object_of(call), subresource=route.subresource, dry_run=dry_run
        )
        return call.shown(obj, 201 if created else 200)
    if media not in list(PatchType):
        accepted = ", ".join((*PatchType, APPLY))
        raise UnsupportedMedia(f"the body of the request was in an unknown format: {media!r}; accepted are {accepted}")
    obj = call.cluster.patch(
        call.resource,
        call.space,
        route.name,
        call.request.document(),
        kind=PatchType(media),
        subresource=route.subresource,
        dry_run=dry_run,
    )
    return call.shown(obj)


# Deleting


def _delete(call: Call) -> Reply:
    options, dry_run = options_of(call.request)
    name = call.route.name
    before = call.cluster.get(call.resource, call.space, name)
    left = call.cluster.delete_with(call.resource, call.space, name, options, dry_run=dry_run)
    if left is not None:
        return call.shown(left)
    if call.kind.key in _RETURNED:
        return call.shown(edited(before))
    details = {"name": name, "group": call.resource.group, "kind": call.resource.plural}
    return Reply(200, success(details={**details, "uid": before["metadata"]["uid"]}))


def _delete_collection(call: Call) -> Reply:
    options, dry_run = options_of(call.request)
    query = call.request.query
    call.cluster.delete_collection(
        call.resource,
        call.space,
        options,
        labels=query.get("labelSelector", ""),
        fields=query.get("fieldSelector", ""),
        dry_run=dry_run,
    )
    return Reply(200, success())
