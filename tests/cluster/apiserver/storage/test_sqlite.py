"""The SQLite file outlives its process, is used by one process at a time, and reports damage."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.support import config_map, names
from tf_dist.cluster.api import CONFIG_MAPS, Resource
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.apiserver.storage.sqlite import SqliteJournal
from tf_dist.errors import ClusterError, Gone

WRITER = """
import sys
from tf_dist.cluster.api import CONFIG_MAPS
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.apiserver.storage.sqlite import SqliteJournal
cluster = MemoryCluster(journal=SqliteJournal(sys.argv[1]))
for number in range(100_000):
    made = cluster.create(CONFIG_MAPS, "default", {"metadata": {"name": f"c{number:06}"}})
    if number % 3 == 0:
        cluster.delete(CONFIG_MAPS, "default", made["metadata"]["name"])
    print(number, made["metadata"]["resourceVersion"], flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "cluster.db"


def opened(path: Path) -> MemoryCluster:
    return MemoryCluster(journal=SqliteJournal(path))


def test_objects_and_version_survive_restart(path: Path) -> None:
    with opened(path) as cluster:
        kept = cluster.create(CONFIG_MAPS, "default", config_map("kept", key="1"))
        cluster.create(CONFIG_MAPS, "default", config_map("gone"))
        cluster.delete(CONFIG_MAPS, "default", "gone")
        version = cluster.list(CONFIG_MAPS).resource_version
    with opened(path) as cluster:
        assert cluster.get(CONFIG_MAPS, "default", "kept") == kept
        assert names(cluster, CONFIG_MAPS, None) == ["kept"]
        assert cluster.list(CONFIG_MAPS).resource_version == version
        new = cluster.create(CONFIG_MAPS, "default", config_map("new"))
        assert int(new["metadata"]["resourceVersion"]) == int(version) + 1


def test_older_versions_are_gone_after_a_restart(path: Path) -> None:
    with opened(path) as cluster:
        old = cluster.create(CONFIG_MAPS, "default", config_map("a"))["metadata"]["resourceVersion"]
        cluster.create(CONFIG_MAPS, "default", config_map("b"))
    with opened(path) as cluster:
        with pytest.raises(Gone):
            cluster.watch(CONFIG_MAPS, since=old)
        cluster.watch(CONFIG_MAPS, since=cluster.list(CONFIG_MAPS).resource_version).close()


def test_acknowledged_writes_survive_kill_of_process(path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline().split() for _ in range(300)]
    os.kill(process.pid, signal.SIGKILL)
    rest, _ = process.communicate()
    whole = [line.split() for line in rest.splitlines(keepends=True) if line.endswith("\n")]
    said = [(int(number), int(version)) for number, version in [*lines, *whole]]
    with opened(path) as cluster:
        found = set(names(cluster, CONFIG_MAPS, "default"))
        newest = int(cluster.list(CONFIG_MAPS).resource_version)
    assert {f"c{number:06}" for number, _ in said if number % 3} <= found
    assert not {f"c{number:06}" for number, _ in said if number % 3 == 0} & found
    assert newest >= max(version for _, version in said)


def test_every_commit_is_synced_to_disk(path: Path) -> None:
    """With a write-ahead log, SQLite syncs at every commit only if ``synchronous`` is FULL (2)."""
    journal = SqliteJournal(path)
    try:
        settings = ("journal_mode", "synchronous", "fullfsync")
        found = [journal._connection().execute(f"PRAGMA {name}").fetchone()[0] for name in settings]
    finally:
        journal.close()
    assert found == ["wal", 2, 1]


def test_custom_kinds_are_served_after_restart(path: Path) -> None:
    things = Resource("example.com", "v1", "Thing", "things")
    version = {"name": "v1", "served": True, "storage": True}
    spec = {"group": "example.com", "names": {"kind": "Thing", "plural": "things"}, "versions": [version]}
    with opened(path) as cluster:
        cluster.create(CRDS, None, {"metadata": {"name": "things.example.com"}, "spec": spec})
        cluster.create(things, "default", {"metadata": {"name": "a"}, "spec": {"any": ["thing", 1, None]}})
    with opened(path) as cluster:
        assert cluster.get(things, "default", "a")["spec"] == {"any": ["thing", 1, None]}


def test_only_owner_can_read_files(path: Path) -> None:
    with opened(path) as cluster:
        cluster.create(CONFIG_MAPS, "default", config_map("a"))
        modes = {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        assert modes == {0o600}
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_second_process_is_refused(path: Path) -> None:
    with opened(path):
        with pytest.raises(ClusterError, match="in use") as refused:
            SqliteJournal(path)
        assert str(path) in str(refused.value)
        assert refused.value.hint
    opened(path).close()


@pytest.mark.parametrize("content", [b"this is not a database " * 100, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_damaged_file_is_reported_and_kept(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(ClusterError, match="damaged") as refused:
        SqliteJournal(path)
    assert str(path) in str(refused.value)
    assert "move it away" in refused.value.hint
    assert path.read_bytes() == content


def test_database_of_another_program_is_refused_and_kept(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE precious (x)")
    db.close()
    with pytest.raises(ClusterError, match="another program"):
        SqliteJournal(path)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("precious",)]
    db.close()


def test_closed_cluster_refuses_writes(path: Path) -> None:
    cluster = opened(path)
    cluster.close()
    with pytest.raises(ClusterError, match="closed"):
        cluster.create(CONFIG_MAPS, "default", config_map("a"))


_FULL = """
import resource, signal, sys
from tf_dist.cluster.api import CONFIG_MAPS
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.apiserver.storage.sqlite import SqliteJournal
from tf_dist.errors import ClusterError

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def refusal(call):
    try:
        call()
    except ClusterError as error:
        return f"{error} ({error.hint})"
    return "none"

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit then fails as on a full disk
cluster = MemoryCluster(journal=SqliteJournal(sys.argv[1]))
cluster.create(CONFIG_MAPS, "default", {"metadata": {"name": "kept"}})
limit(1)
print(refusal(lambda: cluster.create(CONFIG_MAPS, "default", {"metadata": {"name": "refused"}})))
print(refusal(lambda: cluster.delete(CONFIG_MAPS, "default", "kept")))
print([item["metadata"]["name"] for item in cluster.list(CONFIG_MAPS, "default").items])
cluster.close()
print(refusal(lambda: SqliteJournal(sys.argv[1])))
limit(resource.RLIM_INFINITY)
again = MemoryCluster(journal=SqliteJournal(sys.argv[1]))
print([item["metadata"]["name"] for item in again.list(CONFIG_MAPS, "default").items])
again.close()
"""


def test_full_disk_is_reported_and_loses_nothing(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _FULL, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    created, deleted, in_memory, opened, reloaded = done.stdout.splitlines()
    for refusal in (created, deleted, opened):
        assert "free space" in refusal
        assert str(path) in refusal
        assert "delete it" not in refusal
        assert "rollback" not in refusal
    assert in_memory == reloaded == "['kept']"
