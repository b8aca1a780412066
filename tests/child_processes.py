"""The signals and the environment that child processes of tests inherit, however the tests were started."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tf_dist.local.daemon import LOCK_FILE_VARIABLE

_HEARD: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_heard() -> Iterator[None]:
    """Let processes started in this context handle signals, which they would ignore below ``nohup … &``.

    Only for the main thread.
    """
    ignored = [number for number in _HEARD if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


def environment_without(*prefixes: str) -> dict[str, str]:
    """This process's environment without the variables that have one of the prefixes.

    The lock file of this test run is kept, so that local clusters end with the test run, even if it is killed.
    """
    # pytest changes its variable while other threads read the environment.
    values = {name: os.environ.get(name) for name in list(os.environ)}
    return {
        name: value
        for name, value in values.items()
        if value is not None and (name == LOCK_FILE_VARIABLE or not name.startswith(prefixes))
    }
