"""Suspension of a step's job for as long as its workflow is suspended: ``argo suspend`` stops no pod by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tf_dist.argo.launcher import contract
from tf_dist.argo.launcher.launcher_arguments import LauncherOptions
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import Cluster
from tf_dist.core.diagnostics.outcome import is_suspended
from tf_dist.core.dialects import suspend_patch
from tf_dist.core.pipeline.workflow_stop import decide_suspension
from tf_dist.errors import ClusterError, Forbidden, NotFound


def stop_patch(job: StoredJob, *, suspend: bool, by: str = "") -> dict[str, Any]:
    """The patch that suspends a job, noting by whom, or resumes it."""
    patch = suspend_patch(job.stored, suspend)
    metadata = patch.setdefault("metadata", {})
    metadata.setdefault("annotations", {})[contract.STOPPED_BY] = by if suspend else None
    return patch


class StepSuspension:
    """``home``: the workflow's namespace; ``say`` gets what is done. It needs to read workflows, as a stop does."""

    def __init__(self, cluster: Cluster, options: LauncherOptions, home: str, say: Callable[[str], object]) -> None:
        self._cluster = cluster
        self._options = options
        self._home = home
        self._say = say
        self._on = options.on_suspend and bool(options.workflow and options.workflow_uid)
        self._due = time.monotonic() + options.look_every
        self._last: bool | None = None  # what is seen of the job may be older than that

    def seconds(self) -> float | None:
        """How long until the next look; None: there is none."""
        return max(0.0, self._due - time.monotonic()) if self._on else None

    def look(self, job: StoredJob | None) -> None:
        """Look at the workflow if it is time, and suspend or resume the job."""
        if job is None or not self._on or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._options.look_every
        try:
            workflow = self._cluster.get(contract.WORKFLOWS, self._home, self._options.workflow)
            by_workflow = _annotation(job) == contract.WORKFLOW
            suspended = is_suspended(job.status)
            decision = decide_suspension(workflow, suspended=suspended, by_workflow=by_workflow)
            ours = workflow["metadata"].get("uid") == self._options.workflow_uid
            if ours and decision is not None and decision is not self._last:
                self._change(job, decision)
                self._last = decision
        except (Forbidden, NotFound) as error:
            self._on = False
            self._say(f"the workflow cannot be read, so argo suspend does not suspend {job.shown}: {error}")
        except ClusterError:
            return  # at the next look

    def _change(self, job: StoredJob, suspend: bool) -> None:
        patch = stop_patch(job, suspend=suspend, by=contract.WORKFLOW)
        patch["metadata"]["uid"] = job.uid
        self._cluster.patch(job.resource, job.namespace, job.name, patch)
        self._say(f"the workflow is suspended: suspends {job.shown}" if suspend else f"resumes {job.shown}")


def _annotation(job: StoredJob) -> str:
    return str((job.stored["metadata"].get("annotations") or {}).get(contract.STOPPED_BY, ""))
