"""Logs through a proxy that silently drops connections: all lines arrive, and nothing hangs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.forgetful_proxy import ForgetfulProxy
from tests.waiting import until
from tf_dist import Client, OutcomeKind, TFJob
from tf_dist.client.connection import Connection
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.local.embedded import EmbeddedCluster, EmbeddedSettings

SECONDS = 120
TWELVE = [f"line {number}" for number in range(1, 13)]
FIRST_AND_REST = (
    "echo line 1; until [ -e go ]; do sleep 0.05; done; for i in $(seq 2 12); do echo line $i; done;"
    " until [ -e end ]; do sleep 0.05; done"
)


@contextmanager
def through_a_proxy(log_silence: float) -> Iterator[tuple[Client, ForgetfulProxy]]:
    """A client that reaches an embedded cluster through a proxy, with short watches."""
    with EmbeddedCluster(EmbeddedSettings()) as embedded:
        address = urlsplit(embedded.url)
        assert address.hostname is not None
        assert address.port is not None
        with (
            ForgetfulProxy((address.hostname, address.port)) as proxy,
            RestCluster(proxy.url, token=embedded.token, watch_seconds=1.0, log_silence=log_silence) as cluster,
        ):
            yield Client(connection=Connection(cluster, "default", "the proxy")), proxy


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job() -> TFJob:
    command = ["sh", "-c", FIRST_AND_REST]
    return TFJob("job", image="none", command=command, restart_policy="Never")


@pytest.mark.parametrize(("log_silence", "running"), [(SECONDS, False), (0.5, True)])
def test_follow_returns_all_lines_after_dead_connection(folder: Path, log_silence: float, running: bool) -> None:
    """The container has ended, or still runs without output."""
    with through_a_proxy(log_silence) as (client, proxy), ThreadPoolExecutor() as threads:
        stored, lines = client.submit(job()), list[str]()

        def follow() -> None:
            for line in client.logs(stored, follow=True):
                lines.append(line.text)

        following = threads.submit(follow)
        until(lambda: bool(lines), SECONDS)
        proxy.forget()
        (folder / "go").touch()
        if running:
            until(lambda: len(lines) == len(TWELVE), SECONDS)
        (folder / "end").touch()
        following.result(timeout=SECONDS)
        assert lines == TWELVE


def test_result_contains_all_lines_after_dead_connection(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with through_a_proxy(log_silence=SECONDS) as (client, proxy), ThreadPoolExecutor() as threads:
        following = threads.submit(client.follow, client.submit(job()))
        said: list[str] = []

        def first() -> bool:
            said.append(capsys.readouterr().out)
            return "line 1" in "".join(said)

        until(first, SECONDS)
        proxy.forget()
        (folder / "go").touch()
        (folder / "end").touch()
        result = following.result(timeout=SECONDS)
        assert result.outcome.kind is OutcomeKind.SUCCEEDED
        assert result.logs == {"worker-0": tuple(TWELVE)}
        assert "could not be read" not in "".join([*said, capsys.readouterr().out])
