"""Pictures of the documentation, taken from real runs: ``python -m docs.generator.pictures [NAME…]``.

They are kept in ``docs/pictures``: a training, and more so a browser, is nothing that every build should need.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[3]
PICTURES = ROOT / "docs" / "pictures"
LARGEST = 150_000  # bytes


def keep(name: str, content: str | bytes) -> None:
    """Write a picture, and say where; ValueError if it is too large for a page."""
    data = content.encode() if isinstance(content, str) else content
    if len(data) > LARGEST:
        raise ValueError(f"{name} has {len(data)} bytes, more than {LARGEST}")
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / name).write_bytes(data)
    print(f"{PICTURES / name}: {len(data) // 1000} kB")
