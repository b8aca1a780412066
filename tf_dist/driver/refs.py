"""What a driver looks after: where a job is, and the kinds of jobs and of what they own."""

from __future__ import annotations

from typing import Final, NamedTuple

from tf_dist.cluster.api import CONFIG_MAPS, NETWORK_POLICIES, SERVICES, TFJOBS, VOLCANO_JOBS, Object, Resource
from tf_dist.core import names

JOB_KINDS: Final = (TFJOBS, VOLCANO_JOBS)
_BY_KIND: Final = {kind.kind: kind for kind in JOB_KINDS}
OWNED_KINDS: Final = (SERVICES, CONFIG_MAPS, NETWORK_POLICIES)


class JobRef(NamedTuple):
    """Where a job is: its resource, namespace and name."""

    resource: Resource
    namespace: str
    name: str

    @classmethod
    def of(cls, resource: Resource, stored: Object) -> JobRef:
        """The reference of a stored job."""
        return cls(resource, stored["metadata"]["namespace"], stored["metadata"]["name"])

    @classmethod
    def of_owner(cls, owned: Object) -> JobRef | None:
        """The job that an object belongs to; None if it is nobody's, or somebody else's."""
        if not names.owner_key(owned):
            return None
        metadata = owned["metadata"]
        owner = next(owner for owner in metadata["ownerReferences"] if owner.get("controller"))
        kind = _BY_KIND.get(owner.get("kind"))
        return cls(kind, metadata["namespace"], owner["name"]) if kind else None

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
