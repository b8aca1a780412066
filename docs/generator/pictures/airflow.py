"""Airflow's own pages about a run of the tutorial's DAG: its grid and the log of its task, in a headless browser.

Needs Chromium (``apt-get install chromium``), which is no dependency of tf-dist.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from docs.generator.pictures import ROOT, keep
from tf_dist.local.embedded import EmbeddedCluster, EmbeddedSettings, write_private_json

TUTORIAL = ROOT / "docs" / "tutorials" / "first-dag.md"
DAG = "hello_training"
_PORT = 18080
_URL = f"http://127.0.0.1:{_PORT}"


def pages() -> None:
    """Keep ``airflow-grid.png`` and ``airflow-log.png``."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        raise RuntimeError("no Chromium is on the PATH: apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="td-") as scratch, _airflow(Path(scratch)):
        run = _run_to_end()
        grid = f"{_URL}/dags/{DAG}"
        log = f"{_URL}/dags/{DAG}/runs/{run}/tasks/train"
        for name, address in (("airflow-grid.png", grid), ("airflow-log.png", log)):
            keep(name, _small(_shot(browser, address, Path(scratch))))


@contextmanager
def _airflow(scratch: Path) -> Iterator[None]:
    """``airflow standalone`` with the tutorial's DAG and a cluster of its own; every user is an administrator."""
    dags = scratch / "dags"
    dags.mkdir()
    (code,) = re.findall(r'^```python title="hello_training.py"\n(.*?)^```$', TUTORIAL.read_text(), flags=re.M | re.S)
    (dags / "hello_training.py").write_text(code)
    environment = os.environ | {
        "AIRFLOW_HOME": str(scratch / "airflow"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # it calls itself by name
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__API__PORT": str(_PORT),
        "AIRFLOW__API__BASE_URL": _URL,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{_URL}/execution/",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW__TF_DIST__DEPLOYMENT": "docs",
        "KUBECONFIG": str(scratch / "kubeconfig"),
        "TF_DIST_HOME": str(scratch / "none"),
    }
    with (
        EmbeddedCluster(EmbeddedSettings(state_dir=scratch / "node", workdir=dags)) as cluster,
        (scratch / "log").open("w") as out,
    ):
        write_private_json(cluster.kubeconfig(), scratch / "kubeconfig")
        command = [sys.executable, "-m", "airflow", "standalone"]
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
        try:
            yield
        except BaseException:
            print((scratch / "log").read_text()[-4000:], file=sys.stderr)
            raise
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _run_to_end() -> str:
    """Two runs of the DAG; the name of the last, which succeeded."""
    run = ""
    for _ in range(2):
        run = str(_asked("POST", f"dags/{DAG}/dagRuns", {"logical_date": None})["dag_run_id"])
        deadline = time.monotonic() + 400
        while (state := _asked("GET", f"dags/{DAG}/dagRuns/{run}")["state"]) not in ("success", "failed"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the run {run} is {state}")
            time.sleep(1)
        if state != "success":
            raise RuntimeError(f"the run {run} has {state}")
    return run


def _asked(verb: str, path: str, body: Any = None) -> Any:
    """An answer of Airflow's API, which is waited for while it starts."""
    deadline = time.monotonic() + 400
    while True:
        try:
            with urllib.request.urlopen(f"{_URL}/auth/token", timeout=5) as answer:
                token = json.load(answer)["access_token"]
            head = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(f"{_URL}/api/v2/{path}", data, head, method=verb)
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def _shot(browser: str, address: str, scratch: Path) -> bytes:
    """A picture of a page once it has settled."""
    file = scratch / "shot.png"
    command = [
        browser,
        "--headless=new",
        "--no-sandbox",
        "--hide-scrollbars",
        "--disable-gpu",
        "--window-size=1200,640",
    ]
    command += [
        f"--user-data-dir={scratch / 'browser'}",
        "--virtual-time-budget=20000",
        f"--screenshot={file}",
        address,
    ]
    subprocess.run(command, check=True, timeout=180, stderr=subprocess.DEVNULL)
    return file.read_bytes()


def _small(png: bytes) -> bytes:
    """The picture with 128 colours, where Pillow is at hand."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        return png
    out = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(128).save(out, "PNG", optimize=True)
    return out.getvalue()
