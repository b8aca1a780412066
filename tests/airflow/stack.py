"""A complete Airflow: API server, scheduler, DAG processor and triggerer as processes, controlled over REST.

The database is SQLite, or a new database on the PostgreSQL server in TF_DIST_TEST_POSTGRES.
"""

from __future__ import annotations

import http
import json
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.airflow.site import Site
from tests.child_processes import environment_without
from tests.waiting import until

SECONDS = 300.0
_EVERY = 1.0  # more requests would slow down a busy API server
ROOT = Path(__file__).parents[2]
# Reads pids from its input until the test process ends, and then kills these processes and their children. A negative
# number reports that a process has already ended.
_GUARD = """
import contextlib, glob, os, signal, sys
named, parents = {int(line) for line in sys.stdin}, {}
doomed = {pid for pid in named if pid > 0 and -pid not in named}
for path in glob.glob("/proc/[0-9]*/stat"):
    with contextlib.suppress(OSError):
        text = open(path).read()
        parents[int(text.split()[0])] = int(text.rpartition(")")[2].split()[1])
while more := {child for child, parent in parents.items() if parent in doomed} - doomed:
    doomed |= more
for pid in doomed & parents.keys():
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)
"""
OVER = ("success", "failed", "upstream_failed", "skipped", "removed")


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the condition is true."""
    until(condition, SECONDS, every=_EVERY)


def _ports(count: int) -> list[int]:
    """Free ports outside the ephemeral range, so that the system does not give them to other processes."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(10_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
    return found


@dataclass
class Stack:
    """Starts all processes in ``folder`` with an empty ``database``, and ``stop`` ends them. Jobs go to ``site``.

    ``broker`` is for Celery workers. Without a broker, the scheduler runs the tasks. The API server listens on
    ``address``.
    """

    folder: Path
    site: Site
    database: str
    broker: str = ""
    address: str = "127.0.0.1"
    dags: Path = ROOT / "tests" / "airflow" / "stack_dags.py"
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        api, worker_log, self._trigger_log, self._second_log = _ports(4)
        self._url = f"http://{self.address}:{api}"
        self._flags = self.folder / "flags"
        for name in ("flags", "dags", "home", "out"):
            (self.folder / name).mkdir()
        shutil.copy(self.dags, self.folder / "dags")
        home = self.folder / "home"
        self.env = environment_without("AIRFLOW", "KUBECONFIG", "KUBERNETES_SERVICE", "TF_DIST") | {
            "AIRFLOW_HOME": str(home),
            "HOME": str(self.folder),
            "PYTHONPATH": str(ROOT),
            "TD_FLAGS": str(self._flags),
            "TD_KUBECONFIG": self.site.kubeconfig,
            "TF_DIST_HOME": str(home / "none"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.folder / "dags"),
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "8",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self._url}/execution/",
            "AIRFLOW__API__HOST": self.address,
            "AIRFLOW__API__PORT": str(api),
            "AIRFLOW__API__BASE_URL": self._url,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self.database,
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(worker_log),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(self._trigger_log),
            "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "2",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
            "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "2",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
            "AIRFLOW__TRIGGERER__RUNNER_HEALTH_CHECK_THRESHOLD": "0",
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "120",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        }

        if self.broker:
            self.env |= {
                "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
                "AIRFLOW__CELERY__BROKER_URL": self.broker,
                "AIRFLOW__CELERY__RESULT_BACKEND": f"db+sqlite:///{self.folder}/celery.db",
                "AIRFLOW__CELERY__WORKER_CONCURRENCY": "2",
            }
        guard = [sys.executable, "-c", _GUARD]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, text=True, start_new_session=True)

    # Start and stop

    def start(self) -> None:
        """Start all components, and wait until they are healthy and the DAGs are loaded."""
        subprocess.run([self._airflow, "db", "migrate"], env=self.env, check=True, capture_output=True, timeout=SECONDS)
        if self.database.startswith("sqlite"):
            file = self.database.removeprefix("sqlite:///").partition("?")[0]
            with closing(sqlite3.connect(file)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")  # otherwise readers block writers
        for name in (
            "api-server",
            "scheduler",
            "dag-processor",
            "triggerer",
            *(["celery worker"] if self.broker else []),
        ):
            self.launch(name)
        eventually(self._healthy)
        defined = self.dags.read_text().count("\nwith DAG(")
        eventually(lambda: len(self.get("/dags")["dags"]) == defined)

    def launch(self, name: str, key: str = "", **env: str) -> None:
        """Start a component. ``key`` identifies a second process of the same component."""
        key = key or name
        with (self.folder / "out" / key).open("ab") as out:
            self.processes[key] = subprocess.Popen(
                [self._airflow, *name.split()], env=self.env | env, stdout=out, stderr=out, start_new_session=True
            )
        self._tell_guard(self.processes[key].pid)

    def _tell_guard(self, process: int) -> None:
        assert self._guard.stdin is not None
        print(process, file=self._guard.stdin, flush=True)

    def second_triggerer(self) -> None:
        self.launch("triggerer", "second", AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT=str(self._second_log))

    def stop(self) -> None:
        """Stop all components, and kill what does not stop."""
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGCONT)
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                pass
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                self._tell_guard(-process.pid)
        self._guard.communicate()

    def end(self, key: str, number: int) -> None:
        """Send a signal to all processes of a component, and wait for its end."""
        process = self.processes.pop(key)
        os.killpg(process.pid, number)
        process.wait(60)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        self._tell_guard(-process.pid)

    def signal(self, key: str, number: int) -> None:
        os.killpg(self.processes[key].pid, number)

    @contextmanager
    def scheduler_away(self) -> Iterator[None]:
        """Run without a scheduler, so that no task starts. The process is killed: a stopped one could hold locks."""
        self.end("scheduler", signal.SIGKILL)
        try:
            yield
        finally:
            self.launch("scheduler")

    @property
    def _airflow(self) -> str:
        return str(Path(sys.executable).with_name("airflow"))

    def _healthy(self) -> bool:
        dead = [key for key, process in self.processes.items() if process.poll() is not None]
        assert not dead, (self.folder / "out" / dead[0]).read_text()[-3000:]
        try:
            found = self.get("/monitor/health")
        except OSError:
            return False
        parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all(found[part]["status"] == "healthy" for part in parts)

    # Requests

    def get(self, path: str) -> Any:
        return self._ask("GET", path)

    def post(self, path: str, body: Any) -> Any:
        return self._ask("POST", path, body)

    def _ask(self, verb: str, path: str, body: Any = None) -> Any:
        """Send a request, and repeat it after a 500 with SQLite, because "database is locked" becomes a 500.

        The failed request may have succeeded nevertheless. A conflict after a 500 therefore returns None.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token()}"}
        request = urllib.request.Request(f"{self._url}/api/v2{path}", data, headers, method=verb)
        found, failed = list[Any](), list[int]()

        def answered() -> bool:
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    found.append(json.loads(answer.read() or b"null"))
            except urllib.error.HTTPError as error:
                if error.code == http.HTTPStatus.CONFLICT and failed:
                    found.append(None)
                elif error.code == http.HTTPStatus.INTERNAL_SERVER_ERROR and self.database.startswith("sqlite"):
                    failed.append(error.code)
                else:
                    raise
            return bool(found)

        eventually(answered)
        return found[0]

    def _token(self) -> str:
        if not hasattr(self, "_known_token"):
            with urllib.request.urlopen(f"{self._url}/auth/token", timeout=120) as answer:
                self._known_token = json.loads(answer.read())["access_token"]
        return str(self._known_token)

    def run(self, dag_id: str, run_id: str) -> Task:
        """Start a run of a DAG."""
        self.post(f"/dags/{dag_id}/dagRuns", {"logical_date": None, "dag_run_id": run_id})
        return Task(self, dag_id, run_id)

    def let_end(self, run_id: str) -> None:
        """Allow the jobs of a run to end."""
        (self._flags / run_id).touch()


@dataclass(frozen=True)
class Task:
    """A task of a run."""

    stack: Stack
    dag_id: str
    run_id: str
    task_id: str = "train"

    @property
    def path(self) -> str:
        return f"/dags/{self.dag_id}/dagRuns/{self.run_id}/taskInstances/{self.task_id}"

    def instance(self) -> dict[str, Any]:
        try:
            return dict(self.stack.get(self.path))
        except urllib.error.HTTPError:
            return {}

    @property
    def state(self) -> str:
        return str(self.instance().get("state"))

    @property
    def try_number(self) -> int:
        return int(self.instance()["try_number"])

    def until(self, *states: str) -> None:
        """Wait until the task is in one of these states, and fail if it ends in another."""

        def there() -> bool:
            state = self.state
            assert state in states or state not in OVER, f"{self.dag_id} {self.run_id} is {state}:\n{self.log()}"
            return state in states

        eventually(there)

    def set_state(self, state: str) -> None:
        self.stack._ask("PATCH", self.path, {"new_state": state})

    def clear(self) -> None:
        body = {"dry_run": False, "dag_run_id": self.run_id, "task_ids": [self.task_id], "only_failed": False}
        self.stack.post(f"/dags/{self.dag_id}/clearTaskInstances", {**body, "reset_dag_runs": True})

    def log(self, number: int | None = None) -> str:
        """The log of a try, as shown in the UI."""
        found = self.stack.get(f"{self.path}/logs/{number or self.try_number or 1}?full_content=true")
        return "\n".join(str(line.get("event", line)) for line in found["content"])

    def logs(self) -> str:
        """The logs of all tries, for the messages of assertions."""
        return "\n".join(f"--- try {number}\n{self.log(number)}" for number in range(1, self.try_number + 1))

    def xcom(self, key: str = "return_value") -> Any:
        return self.stack.get(f"{self.path}/xcomEntries/{key}")["value"]

    def links(self) -> dict[str, str]:
        """The extra links that have a URL."""
        found = self.stack.get(f"{self.path}/links")["extra_links"]
        return {name: url for name, url in found.items() if url}

    def job(self) -> str:
        """The uid of the only job of this run, or "" if no job exists."""
        mine = [job for job in self.stack.site.jobs() if job["metadata"]["labels"]["run_id"] == self.run_id]
        assert len(mine) <= 1, mine
        return str(mine[0]["metadata"]["uid"]) if mine else ""

    def pods(self) -> list[str]:
        """The pods of the job that have not ended."""
        uid = self.job()
        names = {job["metadata"]["name"] for job in self.stack.site.jobs() if job["metadata"]["uid"] == uid}
        return [pod for pod in self.stack.site.pods() if re.sub(r"-worker-\d+$", "", pod) in names]

    def until_running(self) -> str:
        """Wait until the job's pod runs, and return the job's uid."""
        eventually(lambda: bool(self.pods()))
        return self.job()

    def process(self) -> int:
        """The pid of the task's process in the worker."""
        return int(self.instance()["pid"])
