"""Values of options, read: durations, resources, entry points. InvalidJob says what is wrong with one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tf_dist.errors import InvalidJob, Problem

if TYPE_CHECKING:
    from tf_dist.cluster.node.settings import NetworkMode

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")


def _refuse(option: str, message: str, hint: str) -> InvalidJob:
    return InvalidJob([Problem(option, message, hint)])


def seconds(text: str, option: str = "--timeout") -> float | None:
    """``90``, ``90s``, ``1h30m`` in seconds; None for nothing."""
    if not text:
        return None
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if not re.fullmatch(rf"({_PART.pattern})+", text):
        raise _refuse(option, f"{text!r} is not a time", "write 90s, 10m or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def resources(text: str) -> dict[str, str]:
    """``cpu=8,memory=16Gi`` as a mapping of quantities."""
    from tf_dist.core.quantity import parse_quantity

    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not name:
            raise _refuse("--node", f"{part!r} is not a resource", "write cpu=8,memory=16Gi,nvidia.com/gpu=2")
        try:
            if parse_quantity(value) < 0:
                raise ValueError(f"{value} is less than nothing")
        except ValueError as error:
            raise _refuse("--node", f"{name}: {error}", "write cpu=8,memory=16Gi,nvidia.com/gpu=2") from None
        found[name] = value
    return found


def entrypoints(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """``IMAGE=COMMAND`` each, as a mapping of images to commands."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        image, _, command = text.partition("=")
        try:
            words = tuple(shlex.split(command))
        except ValueError as error:
            raise _refuse("--entrypoint", f"cannot read the command {command!r}: {error}", "close the quotes") from None
        if not image or not words:
            raise _refuse("--entrypoint", f"{text!r} is not IMAGE=COMMAND", "write my/image='python train.py'")
        found[image] = words
    return found


def network_mode(text: str) -> NetworkMode:
    """One of the ways to separate pods."""
    from tf_dist.cluster.node.settings import NetworkMode

    try:
        return NetworkMode(text)
    except ValueError:
        modes = ", ".join(NetworkMode)
        raise _refuse("--network", f"there is no network {text!r}", f"known: {modes}") from None
