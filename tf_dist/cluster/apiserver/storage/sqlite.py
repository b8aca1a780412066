"""The durable journal: every write is in an SQLite file before it is acknowledged."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from tf_dist.cluster.api import Object
from tf_dist.cluster.apiserver.storage.store import Key, deep_copy_json
from tf_dist.errors import ClusterError

# "tfdc" in ASCII: SQLite's field for the program that owns the file.
_APPLICATION_ID = 0x74666463
_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION_ID};
CREATE TABLE IF NOT EXISTS objects (
    kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (kind, namespace, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS newest (id INTEGER PRIMARY KEY CHECK (id = 0), version INTEGER NOT NULL);
INSERT OR IGNORE INTO newest VALUES (0, 0);
"""
_PUT = "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)"


# Errors that do not concern the file itself. A hint to delete the file would cost its owner all data.
_REFUSED_BY_THE_DISK = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}
)


class SqliteJournal:
    """A file that one process at a time may open, as the journal of a MemoryCluster.

    Each write is one transaction in the write-ahead log, which is on the disk when the write returns, as in etcd. A
    write survives a killed process, and a power failure if the disk keeps confirmed data. ClusterError when the file is
    corrupt, of another program, or in use by another process.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._db: sqlite3.Connection | None = None
        try:
            self._open()
        except sqlite3.Error as error:
            self.close()
            raise self._explained(error) from error
        except OSError as error:
            raise ClusterError(f"cannot open the cluster's file {self.path}: {error.strerror}") from error

    def _open(self) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            os.fchmod(file, 0o600)  # it contains Secrets, and may have existed before
        finally:
            os.close(file)
        self._db = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        # The exclusive mode is also the lock: held until the connection, or the process, ends.
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._db.execute("PRAGMA journal_mode = WAL")
        # NORMAL would sync at checkpoints only: a power cut would undo acknowledged writes.
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA fullfsync = ON")  # on macOS, fsync alone leaves data in the disk's cache
        self._db.execute("BEGIN EXCLUSIVE")
        self._db.execute("COMMIT")
        self._check(self._db)
        self._db.executescript(_SCHEMA)

    def _check(self, db: sqlite3.Connection) -> None:
        owner = db.execute("PRAGMA application_id").fetchone()[0]
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and owner != _APPLICATION_ID:
            raise sqlite3.DatabaseError("it belongs to another program")
        verdict = db.execute("PRAGMA quick_check").fetchone()[0]
        if verdict != "ok":
            raise sqlite3.DatabaseError(str(verdict))

    def _explained(self, error: sqlite3.Error) -> ClusterError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return ClusterError(
                f"the cluster's file {self.path} is in use by another process",
                hint="stop that cluster first, or use another file",
            )
        if code in _REFUSED_BY_THE_DISK:
            return ClusterError(
                f"cannot use the cluster's file {self.path}: {error}",
                hint=f"free space on its disk, and check that {self.path.parent} can be written; no data is lost",
            )
        return ClusterError(
            f"{self.path} is not a file of an embedded cluster, or it is damaged: {error}",
            hint="move it away or delete it to start with an empty cluster, or give another path",
        )

    def load(self) -> tuple[int, Iterator[tuple[Key, Object]]]:
        """The newest version and every object, oldest first."""
        newest = "SELECT max(version, coalesce((SELECT max(version) FROM objects), 0)) FROM newest"
        return int(self._connection().execute(newest).fetchone()[0]), self._objects()

    def _objects(self) -> Iterator[tuple[Key, Object]]:
        every = "SELECT kind, namespace, name, body FROM objects ORDER BY version"
        for kind, namespace, name, body in self._connection().execute(every):
            try:
                yield Key(kind, namespace, name), deep_copy_json(json.loads(body))
            except ValueError as error:
                raise self._explained(sqlite3.DatabaseError(f"{kind} {namespace}/{name}: {error}")) from error

    def write(self, key: Key, version: int, obj: Object | None) -> None:
        """Commit one write; ClusterError when the disk fails."""
        db = self._connection()
        try:
            if obj is not None:
                db.execute(_PUT, (*key, version, json.dumps(obj, separators=(",", ":"))))
                return
            # The version of a removal is stored without an object, so one transaction changes both tables.
            db.execute("BEGIN")
            db.execute("DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?", key)
            db.execute("UPDATE newest SET version = ?", (version,))
            db.execute("COMMIT")
        except sqlite3.Error as error:
            if db.in_transaction:  # when the disk is full, SQLite has already rolled back
                db.execute("ROLLBACK")
            raise self._explained(error) from error

    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise ClusterError(f"the cluster's file {self.path} is closed")
        return self._db

    def close(self) -> None:
        """Close the file, so that another process may open it."""
        db, self._db = self._db, None
        if db is not None:
            db.close()
