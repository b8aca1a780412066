"""Objects as YAML text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def to_yaml(objects: Any) -> str:
    """YAML as people write it: keys in their order, long text in blocks."""
    import yaml

    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(dumper):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    dump: Callable[..., str] = yaml.dump_all if isinstance(objects, list) else yaml.dump
    return dump(objects, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1_000_000)
