"""What holds for every test: how many examples Hypothesis draws, which files go first; no daemon outlives a run."""

from __future__ import annotations

import fcntl
import gc
import os
import tempfile

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests.thorough import examples

# A slow machine says nothing about the code: no example has a time limit, and none takes too long to make. And the
# same code gets the same examples, so that a change elsewhere does not fail on what was found by chance:
# to look for more of them, say pytest --hypothesis-profile=default.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")

pytest_plugins = ["tests.not_run"]

# Without garbage collection, pytest collects the tests in three quarters of the time.
gc.disable()

# Daemons of local clusters end with this process, though it be killed: the lock is free then.
_LOCK_FILE = tempfile.NamedTemporaryFile(prefix="tf-dist-tests-", suffix=".lock")  # noqa: SIM115 - held to the end
fcntl.flock(_LOCK_FILE, fcntl.LOCK_EX)
os.environ["TF_DIST_LOCAL_LOCK_FILE"] = _LOCK_FILE.name


@pytest.hookimpl(tryfirst=True)  # before those are left out that the command line leaves out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark properties, which ``make test-slow`` runs again with all examples, and run the longest files first."""
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("thorough")
    long = {item.path for item in items if item.get_closest_marker("tensorflow")}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish() -> None:
    """Enable garbage collection, except for the objects of the collected tests."""
    gc.freeze()
    gc.enable()
