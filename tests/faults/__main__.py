"""Run fault schedules: ``python -m tests.faults [--from SEED] [--count N] [--directed]``; see ``runner.py``."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
import traceback
from collections import Counter

from tests.faults.directed import DIRECTED
from tests.faults.runner import ScheduleRunner, fails, limited, shortened
from tests.faults.schedule import drawn

# Maximum CPU time of a schedule in seconds. A schedule that takes longer is in an endless loop.
_PATIENCE = 120


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the schedules one after the other. Return 1 at the first failure, or if more fail than allowed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--directed", action="store_true", help="first those for one defect each")
    parser.add_argument("--shorten", action="store_true")
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("--may-fail", type=int, default=0, help="so many that fail with --keep-going are only reported")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a schedule
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.faults", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    logging.disable(logging.INFO)
    counts: Counter[str] = Counter()
    failed, began = 0, time.process_time()
    directed = DIRECTED if options.directed else {}
    for seed in (*directed, *range(options.first, options.first + options.count)):
        schedule = directed[seed] if isinstance(seed, str) else drawn(seed)
        runner = ScheduleRunner(schedule)
        try:
            with limited(_PATIENCE):
                counts += runner.run()
        except Exception:
            failed += 1
            problem = traceback.format_exc()
            _say(f"schedule {seed} fails: python -m tests.faults --from {seed}")
            if options.shorten:
                schedule = shortened(schedule)
                problem = str(fails(schedule))
            if not options.keep_going or options.shorten:
                _say(f"{schedule}\n{problem}")
            else:
                _say(problem.split("AssertionError: ")[-1].split("Broken: ")[-1][:300])
            if not options.keep_going:
                return 1
    counts["schedules"], counts["failed schedules"] = options.count, failed
    seconds = time.process_time() - began
    _say(json.dumps({**dict(sorted(counts.items())), "seconds": round(seconds, 1)}))
    return 1 if failed > options.may_fail else 0


if __name__ == "__main__":
    sys.exit(main())
