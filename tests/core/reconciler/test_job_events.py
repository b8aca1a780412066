"""Which events of a job are warnings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.builders import volcano_job
from tests.core.reconciler.scenarios import started
from tf_dist.core.model.context import Observed
from tf_dist.core.model.status import Phase
from tf_dist.core.reconciler.job_context import read_context, with_status
from tf_dist.core.reconciler.job_events import job_events


@pytest.mark.parametrize(
    ("phase", "reason", "type_"),
    [
        (Phase.FAILED, "PodFailed", "Warning"),
        (Phase.RESTARTING, "PodFailed", "Warning"),
        (Phase.RESTARTING, "Resized", "Normal"),
        (Phase.ABORTING, "Suspended", "Normal"),
        (Phase.PENDING, "Preempted", "Warning"),
        (Phase.RUNNING, "Unpinned", "Normal"),
    ],
)
def test_event_type_depends_on_phase_and_reason(phase: Phase, reason: str, type_: str) -> None:
    world = started(volcano_job())
    after = replace(world.memory, phase=phase, reason=reason, message="so it is")
    found = job_events(with_status(read_context(world.job, world.memory, Observed(now=world.now)), after))
    assert [(one.type, one.reason, one.message) for one in found] == [(type_, reason, "so it is")]
