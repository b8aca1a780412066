"""Provider information for Airflow: what ``provider.yaml`` says. Every Airflow process asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def get_provider_info() -> dict[str, Any]:
    """The provider's description, by Airflow's own schema."""
    text = Path(__file__).with_name("provider.yaml").read_text(encoding="utf-8")
    info: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return info
