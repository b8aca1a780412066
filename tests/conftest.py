"""What holds for every test: how Hypothesis looks for examples."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A slow machine says nothing about the code: no example has a time limit, and none takes too long to make. And the
# same code gets the same examples, so that whoever changes something else is not told of what was found by chance:
# to look for more of them, say pytest --hypothesis-profile=default.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")
