"""Volcano's Commands, and when they are deleted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.core.builders import volcano_job, written_status
from tests.core.reconciler.scenarios import started
from tf_dist.core.model.context import Delete
from tf_dist.core.model.status import Phase
from tf_dist.core.reconciler.commands import COMMAND


def command(action: str, **metadata: Any) -> dict[tuple[str, str], dict[str, Any]]:
    name = action.lower()
    return {(COMMAND, name): {"metadata": {"name": name, "uid": f"uid-{name}", **metadata}, "action": action}}


def test_deletes_commands_of_finished_job() -> None:
    world = started(volcano_job())
    over = replace(world.memory, phase=Phase.FAILED, reason="PodFailed")
    world.status = written_status(world.job, over, world.now)
    world.objects |= command("RestartPod", deletionTimestamp="2027-01-15T08:00:00Z") | command("RestartTask")
    found = [one for one in world.look().actions if isinstance(one, Delete) and one.kind == COMMAND]
    assert found == [Delete(COMMAND, "restarttask", "uid-restarttask")]
