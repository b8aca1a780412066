"""What is to be run."""

from __future__ import annotations

from dataclasses import dataclass

from tf_dist.client.bundle import Entry
from tf_dist.client.companions import create_companion, owner_of
from tf_dist.client.submitting import Spaces
from tf_dist.client.yaml_files import Written
from tf_dist.cluster.api import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A job, what stands beside it, and how it is run.

    ``timeout``: seconds after which it is given up (None: never). ``data_wanted``: standard output is for data.
    """

    entry: Entry
    companions: tuple[Written, ...]
    spaces: Spaces
    timeout: float | None
    data_wanted: bool

    @property
    def namespace(self) -> str:
        """Where the job goes."""
        return self.spaces.of(self.entry.written)

    def create_companions(self, cluster: Cluster) -> None:
        """Create what stands beside the job, or bring it up to date."""
        for written in self.companions:
            create_companion(cluster, written, self.spaces.of(written), owner=owner_of(written, [self.entry]))
