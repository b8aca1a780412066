"""`make demo`: run a DAG of dags/ on this machine and print its results.

The script starts a cluster in its process, and Airflow on SQLite. It deletes the temporary folder of both at the end.
Usage: python examples/airflow/demo.py [DAG], by default digits_retrain.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tf_dist.local.embedded import EmbeddedCluster, EmbeddedSettings, write_private_json

DAGS = Path(__file__).resolve().parents[2] / "dags"
# A line that tf-dist wrote to Airflow's log. Tasks print lines without a time.
OURS = re.compile(r"^\S+Z \[\w+ *\] (?P<text>.*?) *\[(?:tf_dist\.airflow|airflow\.task\.operators\.tf_dist)[\w.]*\]")
TIMED = re.compile(r"^\d{4}-\d\d-\d\dT\S+Z \[")
TASK = re.compile(r"\[DAG TEST\] starting task_id=(?P<task>\S+)")

# Airflow's command. It ends together with this process, even if this process is killed.
AIRFLOW = """
import os, runpy, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
runpy.run_module("airflow", run_name="__main__")
"""


def main() -> int:
    """Run the DAG and return Airflow's exit code."""
    dag = sys.argv[1] if len(sys.argv) > 1 else "digits_retrain"
    with tempfile.TemporaryDirectory(prefix="td-") as scratch:
        print(f"Starting a cluster on this machine, and Airflow, for the DAG {dag} (dags/{dag}.py) …", flush=True)
        kubeconfig = Path(scratch, "kubeconfig")
        try:
            with EmbeddedCluster(EmbeddedSettings(state_dir=Path(scratch, "node"), workdir=DAGS.parent)) as cluster:
                write_private_json(cluster.kubeconfig(), kubeconfig)
                return run(dag, Path(scratch), kubeconfig)
        except KeyboardInterrupt:
            print("\nStopped; the job, the cluster and Airflow are gone.")
            return 130


def run(dag: str, scratch: Path, kubeconfig: Path) -> int:
    """Run Airflow as a process, print the lines of tf-dist's tasks, and keep the full log in case Airflow fails."""
    home = scratch / "airflow"
    home.mkdir()
    environment = os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "DIGITS_INBOX": str(scratch / "digits.new"),
        "KUBECONFIG": str(kubeconfig),
        "TF_DIST_HOME": str(scratch / "none"),
        "PYTHONUNBUFFERED": "1",
    }
    airflow = [sys.executable, "-c", AIRFLOW]
    migrate, test = [*airflow, "db", "migrate"], [*airflow, "dags", "test", dag]
    pipe = subprocess.PIPE
    log, table = scratch / "log", list[str]()
    with log.open("w") as out:
        with subprocess.Popen(migrate, env=environment, stdin=pipe, stdout=out, stderr=out) as process:
            process.wait()
        with subprocess.Popen(test, env=environment, stdin=pipe, stdout=pipe, stderr=out, text=True) as process:
            for line in process.stdout or ():
                out.write(line)
                show(line, table)
    code = process.returncode
    print("\n" + "\n".join(table) if table and code == 0 else f"\nIt failed:\n{tail(log)}")
    return code


def show(line: str, table: list[str]) -> None:
    """Print the lines of a task. The output of the last task, ``report``, is the result."""
    if begun := TASK.search(line):
        print(f"\n== task {begun['task']}", flush=True)
        table.clear()
    elif found := OURS.match(line):
        print(found["text"], flush=True)
    elif not TIMED.match(line) and line.strip():
        table.append(line.rstrip())


def tail(log: Path) -> str:
    """Return the end of Airflow's log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-60:])


if __name__ == "__main__":
    sys.exit(main())
