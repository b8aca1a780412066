"""Settings of all tests: Hypothesis examples, the order of files, and a lock that ends daemons with the test run."""

from __future__ import annotations

import fcntl
import gc
import os
import tempfile
import zlib

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests.thorough import examples

# Examples have no time limits, because slow machines are not errors of the code. The same code gets the same examples,
# so that unrelated changes do not fail by chance. Use pytest --hypothesis-profile=default to search for other examples.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")

pytest_plugins = ["tests.not_run"]

# These files wait longest, for example until Leases expire or silent connections are closed.
_LONGEST = {
    "test_controller_host",
    "test_faces",
    "test_forgetful_proxy",
    "test_job_informer",
    "test_launch",
    "test_manager",
    "test_on_a_cluster",
    "test_run",
    "test_scripts",
}

# Without garbage collection, the collection of tests takes a quarter less time.
gc.disable()

# Daemons of local clusters end with this process, even if it is killed, because the lock is released then.
_LOCK_FILE = tempfile.NamedTemporaryFile(prefix="tf-dist-tests-", suffix=".lock")  # noqa: SIM115 - held to the end
fcntl.flock(_LOCK_FILE, fcntl.LOCK_EX)
os.environ["TF_DIST_LOCAL_LOCK_FILE"] = _LOCK_FILE.name


@pytest.hookimpl(tryfirst=True)  # before pytest deselects tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark properties, which ``make test-slow`` runs again with all examples, and mix the files.

    Neighbouring files wait for the same things, such as processes. Side by side, they leave the processor idle.
    """
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("thorough")
    items.sort(key=_order)


def _order(item: pytest.Item) -> int:
    """The position of the item's file. The longest files are in the first half, so that none runs alone at the end."""
    checksum = zlib.crc32(item.location[0].encode())
    return checksum // 2 if item.path.stem in _LONGEST else checksum


def pytest_collection_finish() -> None:
    """Enable garbage collection, except for the objects of the collected tests."""
    gc.freeze()
    gc.enable()
