"""Provider information for Airflow, read from ``provider.yaml``. Every Airflow process requests it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def get_provider_info() -> dict[str, Any]:
    """The description of the provider, in Airflow's schema."""
    text = Path(__file__).with_name("provider.yaml").read_text(encoding="utf-8")
    info: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return info
