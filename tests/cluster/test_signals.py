"""Signals as messages: which are delivered, and which end the process."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tests.child_processes import signals_heard
from tests.waiting import until
from tf_dist.cluster.signals import STOPPING, Signals

SECONDS = 60


def test_only_stop_signals_are_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    told, ends = list[int](), list[int]()
    monkeypatch.setattr(os, "_exit", ends.append)
    others = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: others.set())
    try:
        with signals_heard(), Signals(exit_after=0) as signals:
            signal.raise_signal(signal.SIGTERM)
            signals.listen(told.append)
            signal.raise_signal(signal.SIGUSR1)
            for number in STOPPING:
                signal.raise_signal(number)
            until(lambda: len(told) >= 4, SECONDS)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert others.is_set()
    assert told == [signal.SIGTERM, *STOPPING]
    assert not ends, "the process goes on"


@pytest.mark.parametrize(("count", "code"), [(2, 0), (3, 128 + signal.SIGTERM)])
def test_third_signal_ends_process_immediately(count: int, code: int) -> None:
    signals, told = Signals(), list[int]()
    pid = os.fork()
    if not pid:
        with signals_heard(), signals:
            signals.listen(told.append)
            for _ in range(count):
                signal.raise_signal(signal.SIGTERM)
            until(lambda: len(told) == count, SECONDS)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == code
