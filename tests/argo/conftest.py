"""One cluster for all launchers of a module. Each test cleans up after itself."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator

import pytest

from tests.argo.stage import Stage, stage


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    # The folder contains the node's sockets, and the path of a socket can have only 107 characters.
    scratch = tempfile.mkdtemp(prefix="ta-")
    try:
        with stage(tmp_path_factory.mktemp("argo"), scratch) as made:
            yield made
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture
def scene(theatre: Stage) -> Iterator[Stage]:
    theatre.launchers.clear()
    try:
        yield theatre
    finally:
        for launcher in theatre.launchers:
            launcher.close()
