"""The process behind tf-dist local up: a durable embedded cluster until SIGTERM.

``tf_dist.local.daemon_control`` starts the daemon with its settings as one JSON argument. SIGTERM and SIGINT end the
daemon and all pods. If the daemon is killed in another way, its pods continue and its store stays intact for the next
daemon. With ``TF_DIST_LOCAL_LOCK_FILE`` the daemon and its pods also end when no process holds a lock (flock) on that
file. A test run holds such a lock, and the operating system releases it when the test run ends for any reason.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sys
import threading
from dataclasses import asdict
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tf_dist.cluster.kubelet.node.node_settings import NetworkMode
from tf_dist.cluster.signals import Signals
from tf_dist.errors import TFDistError
from tf_dist.local.daemon_control import ENDPOINT_FILE, KUBECONFIG_FILE, LOG_FILE, read_endpoint
from tf_dist.local.embedded import EmbeddedCluster, EmbeddedSettings, write_private_json

_MAX_LOG: Final = 10 << 20  # bytes
LOCK_FILE_VARIABLE: Final = "TF_DIST_LOCAL_LOCK_FILE"


def main(argument: str) -> int:
    """Run until a signal arrives. Return 1 if the cluster cannot start."""
    stopping = threading.Event()
    settings = json.loads(argument)
    folder = Path(settings["state_dir"])
    log_to_file(folder / LOG_FILE)
    try:
        with Signals(exit_after=0) as signals, EmbeddedCluster(settings_of(settings, folder)) as cluster:
            signals.listen(lambda _: stopping.set())
            if lock_file := os.environ.get(LOCK_FILE_VARIABLE):
                threading.Thread(target=_stop_when_free, args=(lock_file, stopping), daemon=True).start()
            _publish(cluster, folder)
            try:
                stopping.wait()
            finally:
                (folder / ENDPOINT_FILE).unlink(missing_ok=True)
    except TFDistError as error:
        logging.getLogger(__name__).error("%s%s", error, f" ({error.hint})" if error.hint else "")
        return 1
    except OSError as error:  # such as a full disk, or a folder in place of a file
        logging.getLogger(__name__).error("%s", error)
        return 1
    return 0


def _stop_when_free(lock_file: str, stopping: threading.Event) -> None:
    """Stop the daemon when the lock of the file is free. A file that cannot be opened counts as free."""
    try:
        with open(lock_file, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
    except OSError as error:
        logging.getLogger(__name__).warning("cannot wait for the lock of %s: %s", lock_file, error)
    logging.getLogger(__name__).info("stopping, its user has ended: no process holds %s", lock_file)
    stopping.set()


class _DaemonLog(RotatingFileHandler):
    """The bounded log of the daemon. Output that bypasses ``logging``, such as tracebacks, also goes to this log."""

    def _open(self) -> TextIOWrapper:
        file = open(os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8")  # noqa: SIM115 - a the handler closes it
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
        return file


def log_to_file(path: Path, limit: int = _MAX_LOG) -> None:
    """Log to a file of at most ``limit`` bytes and four older files, including standard output and errors."""
    handler = _DaemonLog(path, maxBytes=limit, backupCount=4)
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, handlers=[handler])


def settings_of(given: dict[str, object], folder: Path) -> EmbeddedSettings:
    """The settings of the embedded cluster, derived from the settings of the daemon."""
    return EmbeddedSettings(
        state_dir=folder,
        data_dir=folder / "data",
        workdir=Path(str(given["workdir"])),
        network=NetworkMode(str(given["network"])),
        capacity=given["capacity"],  # type: ignore[arg-type]
        entrypoints={image: tuple(argv) for image, argv in given["entrypoints"].items()},  # type: ignore[attr-defined]
        ephemeral=False,
        durable=True,
        port=_last_port(folder),
    )


def _last_port(folder: Path) -> int:
    """The port of the previous daemon, so that its URL stays valid.

    The token changes, because another process could have listened on the port in the meantime and received the old
    token.
    """
    try:
        return urlsplit(read_endpoint(folder).url).port or 0
    except (OSError, ValueError):
        return 0


def _publish(cluster: EmbeddedCluster, folder: Path) -> None:
    write_private_json(cluster.kubeconfig(), folder / KUBECONFIG_FILE)
    write_private_json(
        {"url": cluster.url, "token": cluster.token, "pid": os.getpid(), "network": asdict(cluster.network)},
        folder / ENDPOINT_FILE,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
