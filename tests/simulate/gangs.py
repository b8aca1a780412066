"""Gangs of a fixed size, for simulations that are computed by hand."""

from __future__ import annotations

from tf_dist.simulate.scenario import SimJob, Speed

LONG = 10_000.0
RIGID = Speed(remote=1.0, overhead=0.0, restart=15.0)


def gang(name: str, submit: float, workers: int, duration: float = LONG, **fields: object) -> SimJob:
    """A gang of ``workers`` with a parameter server. By default, its size is fixed."""
    given = {"least": workers, "most": workers, "ps": 1, "estimate": duration} | fields
    return SimJob(name=name, submit=submit, workers=workers, duration=duration, **given)  # type: ignore[arg-type]
