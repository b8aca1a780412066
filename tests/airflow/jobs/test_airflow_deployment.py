"""Deployment names: two Airflow deployments in one namespace never adopt or delete each other's jobs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.airflow.instance import Instance, MakeOperator, deferred
from tests.airflow.site import FOREVER, SECONDS, Site, document
from tests.waiting import until
from tf_dist.errors import InvalidJob

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

from tf_dist.airflow.jobs.airflow_deployment import DEPLOYMENT_FILE, deployment
from tf_dist.airflow.version_compat import AirflowFailException

Env = dict[str, str]
KEY = "a" * 43 + "="
AWAY = {"AIRFLOW__CORE__EXECUTION_API_SERVER_URL": "http://airflow-api-server:8080/execution/"}

APART: dict[str, tuple[Env, Env]] = {
    "homes": ({}, {}),
    "homes, with the address of this machine": (
        {"AIRFLOW__API__BASE_URL": "http://localhost:8080"},
        {"AIRFLOW__API__BASE_URL": "http://localhost:8080"},
    ),
    "addresses": (
        {"AIRFLOW__API__BASE_URL": "https://one.example.com"},
        {"AIRFLOW__API__BASE_URL": "https://two.example.com"},
    ),
    "names": ({"AIRFLOW__TF_DIST__DEPLOYMENT": "one"}, {"AIRFLOW__TF_DIST__DEPLOYMENT": "two"}),
    "paths": (
        {"AIRFLOW__API__BASE_URL": "https://example.com/one"},
        {"AIRFLOW__API__BASE_URL": "https://example.com/two"},
    ),
}


class Airflow:
    """One of two deployments, with its home and the environment of its components."""

    def __init__(self, home: Path, env: Env, patch: pytest.MonkeyPatch) -> None:
        self.home, self._env, self._patch = home, env, patch
        home.mkdir()

    def on(self) -> None:
        """Make this process a component of the deployment."""
        for name in (*APART["names"][0], *APART["addresses"][0], *AWAY):
            self._patch.delenv(name, raising=False)
        for name, value in {**self._env, "AIRFLOW_HOME": str(self.home)}.items():
            self._patch.setenv(name, value)


@pytest.fixture(params=APART)
def two(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Airflow, Airflow]:
    one, other = APART[request.param]
    return Airflow(tmp_path / "one", one, monkeypatch), Airflow(tmp_path / "two", other, monkeypatch)


@pytest.mark.usefixtures("nothing_is_left")
def test_same_task_of_two_airflows_has_separate_jobs(
    cluster_site: Site, operator: MakeOperator, two: tuple[Airflow, Airflow]
) -> None:
    one, other = two
    one.on()
    mine = Instance("run")
    deferred(operator(document(FOREVER, name="first")), mine)
    other.on()
    for run in ("run", "another"):
        deferred(operator(document(FOREVER, name="second")), Instance(run))
    there = set(cluster_site.names())
    assert len(there) == 3
    one.on()
    ended = Instance("another")
    ended.state = "failed"
    operator(document(name="next")).execute(Instance("next", others=[mine, ended]).context())
    until(lambda: not any(name.startswith("next") for name in cluster_site.names()), SECONDS)
    retry = Instance("run", try_number=2)
    deferred(operator(document(FOREVER, name="first")), retry)
    assert retry.xcoms["job_name"] == mine.xcoms["job_name"]
    assert set(cluster_site.names()) == there


def test_components_of_one_airflow_share_deployment_name(two: tuple[Airflow, Airflow]) -> None:
    one, other = two
    one.on()
    names = {deployment() for _ in range(3)}
    assert len(names) == 1
    other.on()
    assert deployment() not in names


@pytest.mark.parametrize(
    "env",
    [
        AWAY,
        {"AIRFLOW__API__BASE_URL": "http://airflow-api-server:8080"},
        {**AWAY, "AIRFLOW__CORE__FERNET_KEY": KEY},
        {**AWAY, "AIRFLOW__API_AUTH__JWT_SECRET": "airflow_jwt_secret"},
    ],
)
def test_rejects_task_without_unique_deployment_name(
    env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster_site: Site, operator: MakeOperator
) -> None:
    Airflow(tmp_path / "home", env, monkeypatch).on()
    before = cluster_site.names()
    with pytest.raises(AirflowFailException, match=r"\[tf_dist\] deployment"):
        operator(document()).execute(Instance("run").context())
    assert cluster_site.names() == before


def test_concurrent_processes_agree_on_deployment_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Airflow(tmp_path / "home", {}, monkeypatch).on()
    found: list[str] = []
    barrier = threading.Barrier(8)

    def ask() -> None:
        barrier.wait()
        found.append(deployment())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert [path.name for path in (tmp_path / "home").iterdir()] == [DEPLOYMENT_FILE]


def test_unusable_deployment_file_is_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Airflow(tmp_path / "home", {}, monkeypatch).on()
    (tmp_path / "home" / DEPLOYMENT_FILE).mkdir()
    with pytest.raises(InvalidJob, match="cannot be"):
        deployment()


@pytest.mark.parametrize("setting", ["AIRFLOW__API__BASE_URL", "AIRFLOW__TF_DIST__DEPLOYMENT"])
@pytest.mark.parametrize(
    "spelled",
    [
        "https://Airflow.Example.com",
        "https://airflow.example.com/",
        "http://airflow.example.com",
        "HTTP://AIRFLOW.EXAMPLE.COM:80//",
        "https://airflow.example.com:443",
        "https://airflow.example.com.",
        "https://user:password@airflow.example.com",
    ],
)
def test_spellings_of_address_give_same_name(spelled: str, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(setting, spelled)
    assert deployment() == "airflow.example.com"


@pytest.mark.parametrize("other", ["airflow.example.com/a", "airflow.example.com:8443", "[fd00::1]:8080"])
def test_path_and_port_are_part_of_name(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", f"https://{other}/")
    assert deployment() == other


def test_deployment_setting_overrides_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com")
    monkeypatch.setenv("AIRFLOW__TF_DIST__DEPLOYMENT", "Staging ")
    assert deployment() == "staging"
