"""Check whether the fault machine notices the defects of ``mutants_list``, each in a copy of the package.

python -m tests.faults.mutants [NAME…] [--schedules 360] [--jobs 2]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.faults.mutants_list import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tf_dist"


def mutated(mutant: Mutant) -> str:
    """The text of the mutant's file with the defect in it."""
    text = (PACKAGE / mutant.file).read_text()
    assert text.count(mutant.old) == 1, f"{mutant.name}: {mutant.file} has changed"
    return text.replace(mutant.old, mutant.new)


def noticed(mutant: Mutant, schedules: int, limit: float) -> bool:
    """Run schedules with the mutant until a schedule breaks a rule. CI checks that none does without the mutant.

    If the schedules do not end within ``limit`` seconds, the mutant is not noticed, as the machine may only be slow.
    """
    with tempfile.TemporaryDirectory(prefix="tf-dist-mutant-") as folder:
        shutil.copytree(PACKAGE, Path(folder) / "tf_dist")
        (Path(folder) / "tf_dist" / mutant.file).write_text(mutated(mutant))
        command = [sys.executable, "-m", "tests.faults", "--directed", "--count", str(schedules)]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join((folder, str(ROOT)))}
        try:
            done = subprocess.run(
                command, cwd=folder, env=environ, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            print(f"{mutant.name:40} no end within {limit:g} s", flush=True)
            return False
    if done.returncode and " fails: " not in done.stdout:
        raise RuntimeError(f"{mutant.name}: {done.stderr[-4000:]}")
    print(f"{mutant.name:40} {done.stdout.splitlines()[0] if done.returncode else 'SURVIVED'}", flush=True)
    return done.returncode != 0


def main() -> int:
    """Check the mutants with these names, or all mutants. Return 1 if a mutant survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*(one.name for one in MUTANTS), []])
    parser.add_argument("--schedules", type=int, default=360)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds for a mutant")
    chosen = parser.parse_args()
    mutants = [one for one in MUTANTS if not chosen.names or one.name in chosen.names]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        found = list(pool.map(partial(noticed, schedules=chosen.schedules, limit=chosen.limit), mutants))
    print(f"{sum(found)} of {len(mutants)} noticed within {chosen.schedules} schedules")
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
