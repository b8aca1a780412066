"""``tf-dist suspend`` and ``tf-dist resume``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tf_dist.cli import options, output

if TYPE_CHECKING:
    from tf_dist.client.connect import Connection
    from tf_dist.client.jobs import StoredJob


def _command(help_text: str, *, suspended: bool) -> Callable[..., None]:
    """A command over jobs. The two differ in nothing but what they make of ``suspended``, and in their help."""

    def command(
        jobs: options.Names,
        namespace: options.Namespace = "",
        kubeconfig: options.Kubeconfig = "",
        context: options.Context = "",
        local: options.Local = False,
    ) -> None:
        from tf_dist.client.connect import connect

        _set(jobs, namespace, connect(kubeconfig, context, local=local), suspended=suspended)

    command.__doc__ = help_text
    return command


suspend = _command(
    "Stop the pods of jobs and give their place back; resume starts them again. Costs none of their restarts.",
    suspended=True,
)
resume = _command("Let suspended jobs, and jobs that a policy aborted, start again.", suspended=False)


def _set(jobs: list[str], namespace: str, connection: Connection, *, suspended: bool) -> None:
    from tf_dist.client.jobs import find, refuse_finished
    from tf_dist.core.dialects import suspend_patch

    cluster, namespace = connection.cluster, namespace or connection.namespace
    found = [find(cluster, name, namespace) for name in jobs]
    for job in found:
        refuse_finished(job)
    output.announce(connection, namespace)
    for job in found:
        patch: dict[str, Any] = suspend_patch(job.stored, suspended)
        if not suspended:
            patch = _with_attempt(job, patch)
        cluster.patch(job.resource, job.namespace, job.name, patch)
        output.line(f"{job.shown} {'suspended' if suspended else 'resumed'}")


def _with_attempt(job: StoredJob, patch: dict[str, Any]) -> dict[str, Any]:
    """A job that a policy aborted is not suspended; which of its attempts is meant to end says this annotation."""
    from tf_dist.core import names
    from tf_dist.core.status import STOPPED

    if job.status.phase not in STOPPED or job.status.reason == "Suspended":
        return patch
    metadata = patch.get("metadata") or {}
    annotations = {**(metadata.get("annotations") or {}), names.RESUME_ATTEMPT: str(job.status.attempts.job)}
    return {**patch, "metadata": {**metadata, "annotations": annotations}}
