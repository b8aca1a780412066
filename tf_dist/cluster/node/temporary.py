"""Where a container's temporary files are: a folder of its own, as in a container's own file system."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

# Bytes. Programs make sockets below it, whose paths may not be longer than 103.
_LONGEST: Final = 70


def variables(folder: Path) -> dict[str, str]:
    """What tells a program to use the folder; nothing where its path is too long to be of use."""
    return {"TMPDIR": str(folder)} if len(os.fsencode(folder)) <= _LONGEST else {}


def fresh(folder: Path) -> None:
    """Make the folder, without what an earlier run has left. What cannot be removed is no reason not to start."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
