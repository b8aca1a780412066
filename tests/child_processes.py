"""What processes that tests start inherit: signals and the environment, however the tests themselves were started."""

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
    """Processes that are started while this lasts hear these signals: below ``nohup … &`` they would ignore them.

    For the main thread.
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
    """This process's environment without the variables that begin so.

    The lock file of this run stays: a local cluster that is started with it ends when the run does, however that ends.
    """
    # pytest changes its variable while other threads read.
    values = {name: os.environ.get(name) for name in list(os.environ)}
    return {
        name: value
        for name, value in values.items()
        if value is not None and (name == LOCK_FILE_VARIABLE or not name.startswith(prefixes))
    }
