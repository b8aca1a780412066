"""``tf-dist queues``: shows the queues of a cluster and their state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tf_dist.cli import options, output

if TYPE_CHECKING:
    from tf_dist.cluster.api import Cluster, Object
    from tf_dist.errors import NotFound


def queues(
    name: Annotated[str | None, typer.Argument(help="One queue.", metavar="[NAME]")] = None,
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
    form: options.ListOutput = options.ListFormat.TABLE,
    plain: options.Plain = False,
) -> None:
    """List the queues as a tree, with their quotas, use, and numbers of jobs.

    Create queues from files, with tf-dist submit or kubectl apply. Jobs without a queue are in "default". The list
    includes Volcano's queues if the cluster serves them.
    """
    from tf_dist.client.connection import connect
    from tf_dist.client.stored_jobs import definition_missing_error
    from tf_dist.cluster.api import QUEUES
    from tf_dist.cluster.api_errors import NotServed

    cluster = connect(kubeconfig, context, local=local).cluster
    try:
        found = cluster.list(QUEUES).items
    except NotServed as error:
        raise definition_missing_error(QUEUES) from error
    volcanos = _of_volcano(cluster, {one["metadata"]["name"] for one in found})
    found += [meant for meant, _ in volcanos.values()]
    originals = {name: original for name, (_, original) in volcanos.items()}
    listed = list(_as_trees(found))
    if name is not None:
        listed = [(0, one) for _, one in listed if one["metadata"]["name"] == name]
        if not listed:
            raise _missing(name, found)
    _show(listed, originals, form, one=name is not None)
    if form not in (options.ListFormat.TABLE, options.ListFormat.WIDE):
        return
    if shown := [one["metadata"]["name"] for _, one in listed if one["metadata"]["name"] in originals]:
        output.note(f"queues of Volcano: {', '.join(shown)}; tf-dist reads them, and does not change them")
    if not listed:
        output.note("there are no queues: every job is in the queue default, which has no quotas")
        output.note("to create one, write a document of kind Queue: tf-dist submit FILE")


def _of_volcano(cluster: Cluster, taken: set[str]) -> dict[str, tuple[Object, Object]]:
    """Volcano's queues by name, converted and as stored. Empty if they are not served or cannot be read."""
    from tf_dist.cluster.api import VOLCANO_QUEUES
    from tf_dist.core.dialects.volcano_queue import served_documents
    from tf_dist.errors import Forbidden, NotFound

    try:
        stored = {one["metadata"]["name"]: one for one in cluster.list(VOLCANO_QUEUES).items}
    except (NotFound, Forbidden):
        return {}
    meant = {one["metadata"]["name"]: one for one in served_documents(stored.values(), taken)}
    head = {"apiVersion": VOLCANO_QUEUES.api_version, "kind": VOLCANO_QUEUES.kind}
    return {
        name: ({**one, "metadata": stored[name]["metadata"]}, {**head, **stored[name]}) for name, one in meant.items()
    }


def _missing(name: str, found: Sequence[Object]) -> NotFound:
    from tf_dist.core.model.fieldpath import suggestion
    from tf_dist.errors import NotFound

    known = [one["metadata"]["name"] for one in found]
    return NotFound(f"there is no queue {name or repr(name)}", hint=suggestion(name, known, "tf-dist queues lists all"))


def _as_trees(found: Sequence[Object]) -> Iterator[tuple[int, Object]]:
    """Each queue with its depth, after its parent. Queues whose parent does not exist are at the top level."""
    by_name = {one["metadata"]["name"]: one for one in found}
    below: dict[str, list[str]] = {}
    for name in sorted(by_name, reverse=True):
        parent = _parent(by_name[name])
        below.setdefault(parent if parent in by_name else "", []).append(name)
    shown: set[str] = set()
    # Queues in a cycle have no root. They are listed last, at the top level.
    stack = [(0, name) for name in [*sorted(by_name, reverse=True), *below.get("", [])]]
    while stack:
        depth, name = stack.pop()
        if name in shown:
            continue
        shown.add(name)
        yield depth, by_name[name]
        stack += [(depth + 1, child) for child in below.get(name, []) if child not in shown]


def _parent(queue: Object) -> str:
    from tf_dist.core.model.fieldpath import text, value_at

    return text(value_at(queue, "spec", "parent"))


def _show(
    listed: Sequence[tuple[int, Object]], originals: Mapping[str, Object], form: options.ListFormat, *, one: bool
) -> None:
    from tf_dist.cluster.api import QUEUES

    head = {"apiVersion": QUEUES.api_version, "kind": QUEUES.kind}
    match form:
        case options.ListFormat.NAME:
            for _, queue in listed:
                name = queue["metadata"]["name"]
                output.line(f"{'queue.scheduling.volcano.sh' if name in originals else 'queue'}/{name}")
        case options.ListFormat.JSON | options.ListFormat.YAML:
            objects = [originals.get(queue["metadata"]["name"], {**head, **queue}) for _, queue in listed]
            output.data(form.value, objects[0] if one else {"apiVersion": "v1", "kind": "List", "items": objects})
        case _ if listed:
            wide = form is options.ListFormat.WIDE
            titles = ["NAME", "PENDING", "ADMITTED", "USED", "SHARE", "PARENT", "AGE"]
            output.table([*titles, *(_MORE if wide else ())], [_row(depth, queue, wide) for depth, queue in listed])
            _tell_problems(queue for _, queue in listed)


_MORE = ("WEIGHT", "ORDER", "PREEMPTION", "NAMESPACES", "BORROWED")


def _row(depth: int, queue: Object, wide: bool) -> list[str]:
    from tf_dist.client.stored_jobs import now
    from tf_dist.core.diagnostics.display_text import format_age
    from tf_dist.core.model.fieldpath import mapping
    from tf_dist.core.model.timestamps import parse_time

    status = mapping(queue.get("status"))
    stands = [_cell(status.get(key)) for key in ("pending", "admitted", "usage", "share")]
    since = format_age(parse_time(queue["metadata"].get("creationTimestamp")), now())
    row = ["  " * depth + queue["metadata"]["name"], *stands, _parent(queue) or "-", since]
    return [*row, *_rules(queue)] if wide else row


def _cell(value: object) -> str:
    """A value of a status that another client may have written."""
    return (str(value) if isinstance(value, str | int | float) else "") or "-"


def _rules(queue: Object) -> list[str]:
    from tf_dist.core.dialects.queue_resource import read_queue
    from tf_dist.core.model.fieldpath import mapping, value_at
    from tf_dist.core.model.names import selector_text
    from tf_dist.errors import InvalidQueue

    borrowed = mapping(value_at(queue, "status", "borrowed"))
    shown = ", ".join(f"{resource} {_cell(value)}" for resource, value in borrowed.items()) or "-"
    try:
        meant = read_queue(queue)
    except InvalidQueue:
        return ["-", "-", "-", "-", shown]
    open_to = selector_text(meant.namespace_selector or ()) or "all"
    return [str(meant.weight), meant.order.value, meant.preemption.value, open_to, shown]


def _tell_problems(listed: Iterator[Any]) -> None:
    """Print problems of queues, from the validation here, or reported by the admission leader."""
    from tf_dist.core.dialects.queue_resource import read_queue
    from tf_dist.core.model.fieldpath import text, value_at
    from tf_dist.errors import InvalidQueue

    for queue in listed:
        name = queue["metadata"]["name"]
        try:
            read_queue(queue)
        except InvalidQueue as error:
            for problem in error.problems:
                output.warning(f"queue {name}: {problem.path}: {problem.message}", problem.hint)
            continue
        if message := text(value_at(queue, "status", "message")):
            output.warning(f"queue {name}: {message}")
