"""What the embedded cluster is given from outside: container logs and real addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tf_dist.cluster.api import ALL_LINES, LogOptions, Object, Stream
from tf_dist.cluster.refusals import BadRequest


class LogSource(Protocol):
    """Who reads containers' logs: the node agent, once it runs. The method is ``Cluster.logs``."""

    def logs(self, namespace: str, pod: str, options: LogOptions = ALL_LINES) -> Stream[bytes]:
        """The lines of a container's log."""


class AddressSource(Protocol):
    """Who gives endpoints their real addresses, where DNS does not work. The method is ``Cluster.addresses``."""

    def addresses(self, owner: Object, endpoints: Sequence[str]) -> Mapping[str, str]:
        """Where these endpoints of a job are really reached."""


def container_of(pod: Object, wanted: str) -> str:
    """The container that a log is asked of: the wanted one, or the only one; BadRequest."""
    spec = pod["spec"]
    names = [item["name"] for field in ("containers", "initContainers") for item in spec.get(field) or ()]
    name = pod["metadata"]["name"]
    if wanted:
        if wanted not in names:
            raise BadRequest(f"container {wanted} is not valid for pod {name}")
        return wanted
    main: str = spec["containers"][0]["name"]
    if len(spec["containers"]) > 1:
        choices = " ".join(item["name"] for item in spec["containers"])
        raise BadRequest(f"a container name must be specified for pod {name}, choose one of: [{choices}]")
    return main
