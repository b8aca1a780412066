"""Log writer: writes the launcher's output in a thread, so that a slow reader does not delay signals.

While the reader is slow, logs of replicas are read more slowly. After ``hurry``, lines that do not fit are dropped.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Final

from tf_dist.client.job_display import LineView
from tf_dist.core.diagnostics.display_text import visible_text

_MAX_BUFFERED: Final = 1 << 20  # characters that wait to be written


class LogWriter(LineView):
    """A view that writes lines to a descriptor. ``hurry``, from any thread, ends all waits for the reader."""

    def __init__(self, descriptor: int, width: int = 0) -> None:
        super().__init__(self._put, lambda source, text: f"{source:<{self.width}} | {visible_text(text)}")
        self.width = width
        self._descriptor = descriptor
        self._waiting: deque[str] = deque()
        self._size = 0
        self._writing = False
        self._hurried = False
        self._closed = False
        self._gone = False
        self._state = threading.Condition()
        self._thread = threading.Thread(target=self._write_all, name="relay", daemon=True)
        self._thread.start()

    @property
    def behind(self) -> bool:
        """Whether the reader is too slow, so that writers wait."""
        return self._size >= _MAX_BUFFERED

    def hurry(self) -> None:
        """Stop waiting for the reader."""
        with self._state:
            self._hurried = True
            self._state.notify_all()

    def finish(self, timeout: float) -> bool:
        """Write the remaining lines for at most ``timeout`` seconds. Returns whether all are written.

        Later lines are dropped.
        """
        with self._state:
            done = self._state.wait_for(lambda: self._gone or not (self._waiting or self._writing), timeout)
            self._closed = True
            self._state.notify_all()
        if done:
            self._thread.join()
        return done

    def close(self) -> None:
        """Drop the remaining lines."""
        self.finish(0)

    def _put(self, text: str) -> None:
        """Write whole lines. Wait while the reader is slow."""
        text += "\n"
        with self._state:
            self._state.wait_for(lambda: self._size < _MAX_BUFFERED or self._hurried or self._gone or self._closed)
            if self._gone or self._closed or self._size >= _MAX_BUFFERED:
                return
            self._waiting.append(text)
            self._size += len(text)
            self._state.notify_all()

    def _write_all(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                text = "".join(self._waiting)
                self._waiting.clear()
                self._writing = True
            try:
                view = memoryview(text.encode(errors="backslashreplace"))
                while view:
                    view = view[os.write(self._descriptor, view) :]
            except OSError:
                with self._state:
                    self._gone = True  # the reader has closed the stream: write nothing more, and continue the job
            with self._state:
                self._size -= len(text)
                self._writing = False
                self._state.notify_all()
                if self._gone:
                    return
