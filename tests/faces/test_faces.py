"""A list of cases in all interfaces: each job has the same outcome with the same texts."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.argo.stage import Stage, stage
from tests.faces.cases import CASE, CASES, FACES, TRIGGERER, WORKER, Case
from tests.faces.faces import INSTALLED, RUN_ON, Ended
from tests.leaderless import controller
from tests.waiting import until
from tf_dist.cluster.api import JOB_KINDS, Object
from tf_dist.errors import NotFound

SECONDS = 120.0
AT_ONCE = 6
AIRFLOW = (WORKER, TRIGGERER)
ALL = [(face, name) for face in FACES for name in CASES if face in CASES[name].faces]


def _first(name: str) -> str:
    """The interface with which the texts of the others are compared."""
    return next(face for face in CASES[name].faces if INSTALLED or face not in AIRFLOW)


@pytest.fixture(scope="module")
def found(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[tuple[str, str], Future[Ended]]]:
    """The results of all cases in all interfaces. Several cases run at a time, each with a unique name."""
    scratch = tempfile.mkdtemp(prefix="tf-")
    params = [item.callspec.params for item in request.session.items if item.module is request.module]
    wanted = {(face, one["name"]) for one in params for face in (one["face"], _first(one["name"]))}
    try:
        with (
            stage(tmp_path_factory.mktemp("stage"), scratch) as made,
            controller(made.cluster) as leadership,
            ThreadPoolExecutor(AT_ONCE) as pool,
        ):
            until(lambda: bool(leadership.kinds()), SECONDS)
            folder = tmp_path_factory.mktemp("cases")
            yield {
                (face, name): pool.submit(_run, made, face, name, folder / f"{number}")
                for number, (face, name) in enumerate(ALL)
                if (face, name) in wanted and (INSTALLED or face not in AIRFLOW)
            }
            pool.shutdown(cancel_futures=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(made: Stage, face: str, name: str, folder: Path) -> Ended:
    folder.mkdir()
    case = CASES[name]
    label = f"{name}-{FACES.index(face)}"
    metadata = dict(case.document["metadata"])
    if "name" in metadata:
        metadata["name"] = label
    metadata["labels"] = {CASE: label}
    beside = [{**one, "metadata": {"name": f"{one['metadata']['name']}-{FACES.index(face)}"}} for one in case.beside]
    document: Any = {**case.document, "metadata": metadata}
    for one, renamed in zip(case.beside, beside, strict=True):
        old, new = (json.dumps(of["metadata"]["name"]) for of in (one, renamed))
        document = json.loads(json.dumps(document).replace(f'"name": {old}', f'"name": {new}'))
    case = replace(case, document=document, beside=beside)
    if case.meanwhile is None:
        return RUN_ON[face](made, case, folder)
    other = threading.Thread(target=_act, args=(made, case, label))
    other.start()
    try:
        return RUN_ON[face](made, case, folder)
    finally:
        other.join()


def _act(made: Stage, case: Case, label: str) -> None:
    """Run the case's action of another client when the job runs."""

    def job() -> Object | None:
        for kind in JOB_KINDS:
            for one in made.cluster.list(kind, "default", labels=f"{CASE}={label}").items:
                if ((one.get("status") or {}).get("tfDist") or {}).get("phase") == "Running":
                    return one
        return None

    until(lambda: job() is not None, SECONDS)
    running = job()
    assert running is not None
    assert case.meanwhile is not None
    with suppress(NotFound):
        case.meanwhile(made.cluster, running)


@pytest.mark.parametrize(("face", "name"), ALL, ids=lambda one: one.replace(" ", "-"))
def test_job_outcome_is_same_in_all_interfaces(
    face: str, name: str, found: dict[tuple[str, str], Future[Ended]]
) -> None:
    if face in AIRFLOW:
        pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")
    case, ended = CASES[name], found[face, name].result()
    if case.refused:
        assert ended.outcome["kind"] == "invalid"
        assert [part for part in case.refused if part not in ended.refused] == [], ended.refused
        return
    assert not ended.refused
    assert {field: ended.outcome[field] for field in case.ends} == case.ends
    # The texts are also those of the first interface.
    first = found[_first(name), name].result()
    assert [ended.outcome[field] for field in ("reason", "message")] == [
        first.outcome[field] for field in ("reason", "message")
    ]
