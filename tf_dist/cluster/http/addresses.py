"""What only an embedded cluster without DNS is asked: where the endpoints of a job are really reached.

Every answer of such a cluster names ``PATH`` in a header, so that nobody asks a server that does not know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tf_dist.cluster.asked import ADDRESSES_HEADER
from tf_dist.cluster.http.messages import Reply, Request
from tf_dist.cluster.memory.cluster import MemoryCluster
from tf_dist.cluster.refusals import BadRequest

PATH: Final = "/tf-dist/addresses"


def headers(cluster: MemoryCluster) -> Mapping[str, str]:
    """What every answer says of it."""
    return {ADDRESSES_HEADER: PATH} if cluster.address_book is not None else {}


def answer(cluster: MemoryCluster, request: Request) -> Reply:
    """The addresses of the endpoints of a job; BadRequest."""
    body = request.document()
    try:
        owner, endpoints = body["owner"], [str(endpoint) for endpoint in body["endpoints"]]
        known = owner["metadata"]["uid"], owner["metadata"]["namespace"], owner["apiVersion"], owner["kind"]
    except (KeyError, TypeError) as error:
        raise BadRequest(
            f"the body needs the object owner with its type and metadata, and endpoints: {error}"
        ) from error
    if not all(isinstance(value, str) and value for value in known):
        raise BadRequest("the owner needs apiVersion, kind, metadata.namespace and metadata.uid")
    return Reply(200, {"kind": "Addresses", "addresses": dict(cluster.addresses(owner, endpoints))})
