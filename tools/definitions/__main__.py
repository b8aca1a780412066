"""``python -m tools.definitions``: write the definitions into the Helm chart."""

from __future__ import annotations

from pathlib import Path

from tools.definitions.crds import templates

CHART = Path(__file__).parents[2] / "deploy/chart"

if __name__ == "__main__":
    for name, text in templates().items():
        (CHART / "templates/crds" / name).write_text(text, encoding="utf-8")
