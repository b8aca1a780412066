"""``python -m docs.generator.pictures [NAME…]``: take pictures anew, all of them or those that are named."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from docs.generator.pictures import airflow, argo, house, job, queues, simulator, site, terminal

PICTURES: Mapping[str, Callable[[], None]] = {
    "house": house.plan,
    "job": job.journey,
    "run": terminal.run,
    "queues": queues.use,
    "simulator": simulator.compare,
    "argo": argo.workflow,
    "airflow": airflow.pages,
    "site": site.take,
}


def main(*names: str) -> int:
    """0 when all that were asked for are taken."""
    if unknown := set(names) - PICTURES.keys():
        print(f"no picture {', '.join(sorted(unknown))}: there are {', '.join(PICTURES)}", file=sys.stderr)
        return 2
    for name in names or PICTURES:
        PICTURES[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
