"""Work split: the batches of a job of the DRAGON fork (``total-number``), divided among its workers.

The original writes ``--num_batches=<total ÷ workers>`` over the eighth argument of the first replica type, whatever
stands there. Here it replaces that flag of the training container where the template has it, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tf_dist.core.api import names
from tf_dist.core.api.fieldpath import list_items
from tf_dist.core.api.job import ReplicaSpec


def split_batches(spec: ReplicaSpec, body: Mapping[str, Any]) -> None:
    """Give the training container of a pod's spec, which is changed, its share; at least one batch."""
    if not spec.batches:
        return
    share = str(max(1, spec.batches // max(1, spec.replicas)))
    for container in list_items(body.get("containers")):
        if container["name"] == spec.container and list_items(container.get("args")):
            container["args"] = _with_share(container["args"], share)


def _with_share(arguments: list[str], share: str) -> list[str]:
    """The arguments with another value in ``--num_batches=N`` or ``--num_batches N``."""
    result = list(arguments)
    for at, argument in enumerate(arguments):
        flag = names.BATCHES_FLAG.fullmatch(argument)
        if flag is not None and "=" in argument:
            result[at] = f"{flag[1]}={share}"
        elif flag is not None and at + 1 < len(arguments):
            result[at + 1] = share
    return result
