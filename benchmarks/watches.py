"""How often a follower of a job asks behind a proxy that answers every watch with 410."""

from __future__ import annotations

import threading
from typing import Any, Final, cast

from benchmarks.jobs import tfjob
from benchmarks.measure import Figure, benchmark
from tf_dist.client.watching import Watcher
from tf_dist.cluster.api import TFJOBS, Cluster, ObjectList
from tf_dist.cluster.memory import MemoryCluster
from tf_dist.errors import Gone

_SECONDS: Final = 10.0


class _Broken:
    """A cluster in which no watch begins."""

    def __init__(self) -> None:
        self._memory = MemoryCluster()
        self._memory.create(TFJOBS, "default", tfjob("mnist"))
        self.lists = 0

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._memory, verb)

    def list(self, *args: Any, **how: Any) -> ObjectList:
        """Counted."""
        self.lists += 1
        return self._memory.list(*args, **how)

    def watch(self, *_: Any, **__: Any) -> None:
        """Never."""
        raise Gone("too old, says the proxy")


@benchmark("client.lists_behind_410")
def lists_behind_410() -> Figure:
    """Lists a second in the first ten seconds; it goes down to one in five seconds."""
    broken = _Broken()
    watcher = Watcher(cast(Cluster, broken), TFJOBS, "default", lambda _: None)
    threading.Event().wait(_SECONDS)
    watcher.close()
    return Figure(broken.lists / _SECONDS, "/s", target=2.0, peer="")
