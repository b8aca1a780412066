"""Which pod uses which GPU of this machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tf_dist.cluster.node.podspec import ContainerPlan


class Devices:
    """Gives every container that asks for GPUs numbers of its own."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._free = list(numbers)
        self._any = bool(self._free)
        self._held: dict[str, dict[str, list[int]]] = {}

    def assign(self, uid: str, plans: Iterable[ContainerPlan]) -> Mapping[str, str] | None:
        """CUDA_VISIBLE_DEVICES by container; None when too few are free. Nothing on a machine without GPUs."""
        wanted = {plan.name: plan.gpus for plan in plans if plan.gpus}
        if not self._any or not wanted:
            return {}
        if uid not in self._held:
            if sum(wanted.values()) > len(self._free):
                return None
            self._held[uid] = {name: [self._free.pop(0) for _ in range(count)] for name, count in wanted.items()}
        return {name: ",".join(map(str, numbers)) for name, numbers in self._held[uid].items()}

    def restore(self, uid: str, devices: Mapping[str, str]) -> None:
        """Note what a pod that was found running already uses."""
        held = {name: [int(item) for item in text.split(",")] for name, text in devices.items()}
        self._held[uid] = held
        self._free = [item for item in self._free if not any(item in numbers for numbers in held.values())]

    def release(self, uid: str) -> None:
        """Take a pod's GPUs back."""
        for numbers in self._held.pop(uid, {}).values():
            self._free = sorted([*self._free, *numbers])
