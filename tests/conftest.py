"""What holds for every test: how Hypothesis looks for examples, and which files go first."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# A slow machine says nothing about the code: no example has a time limit, and none takes too long to make. And the
# same code gets the same examples, so that whoever changes something else is not told of what was found by chance:
# to look for more of them, say pytest --hypothesis-profile=default.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

pytest_plugins = ["tests.not_run"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest go first: where several run at a time, none is left over at the end."""
    long = {item.path for item in items if item.get_closest_marker("tensorflow")}
    items.sort(key=lambda item: item.path not in long)
