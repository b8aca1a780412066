"""Registry of the shared job informers of this process. The last user of an informer closes it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tf_dist.airflow.informers.job_informer import SharedJobInformer


@dataclass(slots=True)
class _RegistryEntry:
    """An informer and the number of its users. ``ready`` guards ``informer``: users wait while it is created."""

    users: int
    ready: threading.Lock
    informer: SharedJobInformer | None = None


class SharedInformerRegistry:
    """Shared informers by cluster and namespace. Its methods block, so an event loop must not call them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared: dict[object, _RegistryEntry] = {}

    def enter(self, key: object, make: Callable[[], SharedJobInformer]) -> SharedJobInformer:
        """The informer of ``key``, created if necessary. Call ``leave`` once for each call."""
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
        """Stop using an informer. The last user closes it."""
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
"""The registry of this process."""
