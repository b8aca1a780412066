"""The end of a run in a few lines, or as data; and the exit code that goes with it."""

from __future__ import annotations

import signal
from dataclasses import asdict
from typing import Any, Final

from tf_dist.cli import output
from tf_dist.cli.findings import show
from tf_dist.cli.texts import duration, number
from tf_dist.client import exits
from tf_dist.client.jobs import now
from tf_dist.client.scene import Scene
from tf_dist.client.session import End, Result
from tf_dist.core.diagnose import Diagnosis, diagnose
from tf_dist.core.disruptions import counted
from tf_dist.core.outcome import Outcome, outcome
from tf_dist.core.status import LIVE

_CODES: Final = {
    Outcome.SUCCEEDED: exits.DONE,
    Outcome.FAILED: exits.FAILED,
    Outcome.STOPPED: exits.FAILED,
    Outcome.EVICTED: exits.RETRYABLE,
    Outcome.OPEN: exits.FAILED,
}


# While its last pods are stopping a job is Completing or Terminating; how it came out is certain by then.
_WORDS: Final = {Outcome.SUCCEEDED: "Succeeded", Outcome.FAILED: "Failed", Outcome.EVICTED: "Evicted"}


def code_of(result: Result) -> int:
    """The exit code of a run. One that was given up while it waited for a place is worth another try."""
    status = result.scene.status
    match result.end:
        case End.SIGNAL:
            return exits.SIGNALLED + result.signal
        case End.NEVER_FITS:
            return exits.USAGE
        case End.TIMEOUT:
            return exits.FAILED if status.admission is not None else exits.RETRYABLE
    return _CODES[outcome(result.scene.job, status)]


def state_of(result: Result) -> str:
    """How it came out, in a word or two."""
    match result.end:
        case End.SIGNAL:
            return f"interrupted by {signal.Signals(result.signal).name}"
        case End.TIMEOUT:
            return "given up: the time is over"
        case End.NEVER_FITS:
            return "never started"
    return _WORDS.get(outcome(result.scene.job, result.scene.status), result.scene.state)


def findings(result: Result) -> tuple[Diagnosis, ...]:
    """What is to be said about a run that did not succeed."""
    scene = result.scene
    if result.end is End.SIGNAL or outcome(scene.job, scene.status) is Outcome.SUCCEEDED:
        return ()
    return diagnose(scene.job, scene.status, scene.pods, now())


def show_summary(result: Result, kept: str) -> None:
    """The summary for people; ``kept``: where what was kept is, if anything was."""
    scene, code = result.scene, code_of(result)
    style = "green bold" if code == exits.DONE else "red bold"
    output.line()
    output.line(f"{output.painted(scene.job.key.name, 'bold')}: {output.painted(state_of(result), style)}")
    progress = scene.result
    for name, value in sorted(progress.metrics.items(), key=lambda item: (item[0] != "accuracy", item[0])):
        _fact(name, number(value))
    _fact("checkpoint", progress.checkpoint)
    _fact("duration", duration(result.seconds))
    _fact("restarts", _restarts(scene))
    _fact("disruptions", counted(scene.status.disruptions))
    _fact("kept in", kept)
    show(findings(result))


def _fact(name: str, value: str) -> None:
    if value:
        output.line(f"  {name + ':':<12} {value}")


def _restarts(scene: Scene) -> str:
    causes = restarts_by_cause(scene)
    total = sum(causes.values())
    return f"{total} ({', '.join(f'{count} × {cause}' for cause, count in causes.items())})" if total else "0"


def restarts_by_cause(scene: Scene) -> dict[str, int]:
    """Restarts of the whole run, those of containers inside their pods included."""
    # The status of a job that has ended counts those of its last pods already.
    living = sum(pod.restarts for pod in scene.pods) if scene.status.phase in LIVE else 0
    inside = scene.status.container_restarts + living
    return {**scene.status.restarts, **({"container restarted in its pod": inside} if inside else {})}


def report(result: Result, kept: str) -> dict[str, Any]:
    """The summary for programs."""
    scene, progress = result.scene, result.scene.result
    replicas = [
        {"name": str(row.replica), "state": row.state, "restarts": row.restarts}
        | {"metrics": dict(scene.progress[row.replica].metrics) if row.replica in scene.progress else {}}
        for row in scene.replicas
    ]
    return {
        "name": scene.job.key.name,
        "namespace": scene.job.key.namespace,
        "end": result.end.value,
        "state": state_of(result),
        "reason": scene.status.reason,
        "message": scene.status.message,
        "exitCode": code_of(result),
        "seconds": round(result.seconds, 3),
        "metrics": dict(progress.metrics),
        "checkpoint": progress.checkpoint,
        "restarts": restarts_by_cause(scene),
        "disruptions": dict(scene.status.disruptions),
        "replicas": replicas,
        "findings": [asdict(one) for one in findings(result)],
        "kept": kept or None,
    }
