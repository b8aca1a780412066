"""Registry of this process: shared job informers, closed by their last user."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tf_dist.airflow.informers.job_informer import SharedJobInformer


@dataclass(slots=True)
class _RegistryEntry:
    """``ready`` guards ``informer``: users that come while it is made wait for it."""

    users: int
    ready: threading.Lock
    informer: SharedJobInformer | None = None


class SharedInformerRegistry:
    """Shared informers by cluster and namespace. Its methods block: keep them off an event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared: dict[object, _RegistryEntry] = {}

    def enter(self, key: object, make: Callable[[], SharedJobInformer]) -> SharedJobInformer:
        """The informer of ``key``, made if there is none; what ``make`` raises. ``leave`` once for each time."""
        with self._lock:
            shared = self._shared.setdefault(key, _RegistryEntry(0, threading.Lock()))
            shared.users += 1
        try:
            with shared.ready:
                if shared.informer is None:
                    shared.informer = make()
                return shared.informer
        except BaseException:
            self.leave(key)
            raise

    def leave(self, key: object) -> None:
        """One who entered has done with it; the last closes it."""
        with self._lock:
            shared = self._shared[key]
            shared.users -= 1
            if shared.users > 0:
                return
            del self._shared[key]
        if shared.informer is not None:
            shared.informer.close()

    def __len__(self) -> int:
        return len(self._shared)


SHARED_INFORMERS = SharedInformerRegistry()
"""Those of this process."""
