"""Distributed TensorFlow jobs (parameter servers and workers) as first-class steps of pipelines.

``run(TFJob(…))`` trains on this machine. ``Client()`` works with the jobs of a cluster. See docs/python.md.
Names are imported when they are first used. ``__init__.pyi`` has their types.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0.dev0"

_HOMES = {
    "Client": "tf_dist.client.client",
    "InvalidJob": "tf_dist.errors",
    "JobFailed": "tf_dist.errors",
    "Outcome": "tf_dist.core.diagnostics.outcome",
    "OutcomeKind": "tf_dist.core.model.reasons",
    "Problem": "tf_dist.errors",
    "Result": "tf_dist.client.run_session",
    "StoredJob": "tf_dist.client.stored_jobs",
    "TFDistError": "tf_dist.errors",
    "TFJob": "tf_dist.client.tfjob",
    "run": "tf_dist.client.client",
}

__all__ = [
    "Client",
    "InvalidJob",
    "JobFailed",
    "Outcome",
    "OutcomeKind",
    "Problem",
    "Result",
    "StoredJob",
    "TFDistError",
    "TFJob",
    "__version__",
    "run",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
