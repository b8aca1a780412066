"""``make demo-argo``: a complete retraining workflow without an installed Argo.

The double of Argo that the tests use runs the YAML of ``workflows/``. Steps and replicas are processes.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tests.argo.rendered import FOLDER, documents
from tests.argo.runner import Place, Runner, spec_of
from tests.argo.stage import stage

DIGITS = FOLDER.parent / "examples" / "digits"
SHOWN = ("accuracy", "better", "status", "checkpoint", "gpu-seconds", "duration")


def main(name: str = "digits-retrain.yaml", *parameters: str) -> int:
    """Run one of the workflows, and return 0 if it succeeds."""
    known = documents()
    library = {one["metadata"]["name"]: one for one in known.values() if "name" in one["metadata"]}
    scratch = Path(tempfile.mkdtemp(prefix="td-"))
    try:
        with stage(scratch, str(scratch), workdir=DIGITS) as made:
            mounts = {"/models": scratch / "models"}
            place = Place(made.cluster, made.kubeconfig(), scratch / "pods", mounts, DIGITS, _say)
            run = Runner(place, spec_of(known[name], library), dict(one.split("=", 1) for one in parameters))
            phase = run.run()
            _summarise(run)
        return 0 if phase == "Succeeded" else 1
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _summarise(run: Runner) -> None:
    _say(f"\n{run.name}: {run.phase}")
    for name, node in run.nodes.items():
        told = ""
        if isinstance(node.outputs, dict):
            told = ", ".join(f"{key}={node.outputs[key]}" for key in SHOWN if node.outputs.get(key))
        _say(f"  {node.phase:<10} {name.removeprefix(f'{run.name}.')}{f': {told}' if told else ''}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
