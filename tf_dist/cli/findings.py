"""Showing what ``diagnose`` found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from tf_dist.cli import output
from tf_dist.client.bundle import Bundle, require, text_of
from tf_dist.core.diagnose import Diagnosis

_STYLES: Final = {"error": "red bold", "warning": "yellow bold", "info": "cyan"}


def show(found: Iterable[Diagnosis], write: Callable[[str], None] = output.line) -> None:
    """Each finding with its evidence and what to do."""
    for one in found:
        write(f"{output.painted(one.level.value, _STYLES[one.level.value])}: {one.summary}")
        for text in one.detail.splitlines():
            write(f"    {text}")
        if one.resolution:
            write(f"  {output.painted('what to do:', 'bold')} {one.resolution}")


def accepted(bundle: Bundle) -> Bundle:
    """The bundle, its warnings shown; InvalidFiles if it cannot be used."""
    for found in require(bundle).problems:
        output.warning(text_of(found), found.problem.hint)
    return bundle
