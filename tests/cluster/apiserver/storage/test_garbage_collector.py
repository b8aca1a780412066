"""If the disk fails during a cascade of deletions, the garbage collector finishes the cascade later."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.support import config_map, names, owned_by, tf_job_definition
from tests.waiting import until
from tf_dist.cluster.api import CONFIG_MAPS, NAMESPACES, Object, Resource
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.apiserver.storage.sqlite import SqliteJournal
from tf_dist.errors import NotFound

HEALED = "mended"
SECONDS = 60


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[Callable[[str, str], MemoryCluster]]:
    """A durable cluster whose SQLite file fails a kind of write (DELETE or INSERT) to objects of a name.

    The writes fail inside the transaction, until the namespace ``mended`` exists.
    """
    file = tmp_path / "cluster.sqlite"
    opened: list[MemoryCluster] = []

    def make(write: str, name: str) -> MemoryCluster:
        SqliteJournal(file).close()
        row = "OLD" if write == "DELETE" else "NEW"
        with sqlite3.connect(file) as db:
            db.execute(
                f"CREATE TRIGGER broken BEFORE {write} ON objects WHEN {row}.name LIKE '{name}'"
                f" AND {row}.body LIKE '%\"doomed\"%'"
                f" AND NOT EXISTS (SELECT 1 FROM objects WHERE kind = 'namespaces' AND name = '{HEALED}')"
                " BEGIN SELECT RAISE(ABORT, 'disk I/O error'); END"
            )
        db.close()
        opened.append(MemoryCluster(journal=SqliteJournal(file)))
        return opened[0]

    yield make
    for cluster in opened:
        cluster.close()


def mend(cluster: MemoryCluster) -> None:
    cluster.create(NAMESPACES, None, {"metadata": {"name": HEALED}})


def doomed(name: str) -> Object:
    made = config_map(name)
    made["metadata"]["labels"] = {"fate": "doomed"}
    return made


def test_children_of_deleted_owner_are_deleted_after_disk_recovers(
    failing: Callable[[str, str], MemoryCluster],
) -> None:
    cluster = failing("DELETE", "child-%3")
    owner = cluster.create(CONFIG_MAPS, "default", config_map("owner"))
    for number in range(6):
        child = cluster.create(CONFIG_MAPS, "default", owned_by(owner, doomed(f"child-{number}")))
        cluster.create(CONFIG_MAPS, "default", owned_by(child, doomed(f"grand-{number}")))
    cluster.delete(CONFIG_MAPS, "default", "owner")  # succeeds, although the cascade fails
    assert names(cluster, CONFIG_MAPS, "default") == ["child-3", "grand-3"]
    mend(cluster)
    until(lambda: names(cluster, CONFIG_MAPS, "default") == [], SECONDS)


def test_namespace_is_emptied_after_disk_recovers(failing: Callable[[str, str], MemoryCluster]) -> None:
    cluster = failing("DELETE", "b")
    cluster.create(NAMESPACES, None, {"metadata": {"name": "team"}})
    for name in ("a", "b", "c", "d"):
        cluster.create(CONFIG_MAPS, "team", doomed(name))
    cluster.delete(NAMESPACES, None, "team")
    assert names(cluster, CONFIG_MAPS, "team") == ["b"]
    mend(cluster)
    until(lambda: "team" not in names(cluster, NAMESPACES, None), SECONDS)
    assert "default" in names(cluster, NAMESPACES, None)
    with pytest.raises(NotFound):
        cluster.get(CONFIG_MAPS, "team", "b")


def test_objects_of_deleted_definition_are_deleted_after_disk_recovers(
    failing: Callable[[str, str], MemoryCluster],
) -> None:
    cluster = failing("DELETE", "b")
    definition = tf_job_definition()
    definition["metadata"]["name"] = "things.example.com"
    definition["spec"]["group"] = "example.com"
    definition["spec"]["names"] = {"kind": "Thing", "plural": "things", "singular": "thing", "listKind": "ThingList"}
    cluster.create(CRDS, None, definition)
    things = Resource("example.com", "v1", "Thing", "things")
    for name in ("a", "b", "c"):
        metadata = {"name": name, "labels": {"fate": "doomed"}}
        cluster.create(things, "default", {"metadata": metadata, "spec": {"tfReplicaSpecs": {}}})
    cluster.delete(CRDS, None, "things.example.com")
    mend(cluster)
    again = cluster.create(CRDS, None, definition)
    assert again["metadata"]["name"] == "things.example.com"
    until(lambda: names(cluster, things, "default") == [], SECONDS)


def test_leftover_children_are_deleted_at_next_start(
    failing: Callable[[str, str], MemoryCluster], tmp_path: Path
) -> None:
    cluster = failing("DELETE", "child-%")
    owner = cluster.create(CONFIG_MAPS, "default", config_map("owner"))
    cluster.create(CONFIG_MAPS, "default", owned_by(owner, doomed("child-0")))
    cluster.delete(CONFIG_MAPS, "default", "owner")
    mend(cluster)
    cluster.close()
    with MemoryCluster(journal=SqliteJournal(tmp_path / "cluster.sqlite")) as again:
        assert names(again, CONFIG_MAPS, "default") == []
