"""Folders of this machine for what a container has mounted: the double of Argo runs no containers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def placed(text: str, paths: Mapping[str, Path], home: Path) -> str:
    """The text with the paths of this machine for those of the container; what is below ``home`` is one already."""
    inside = "|".join(re.escape(path) for path in sorted(paths, key=len, reverse=True))
    ends = r"(?=[/\s'\"\]},:]|$)"
    one = rf"(?<![\w./-])(?!{re.escape(str(home))})({inside}){ends}"
    return re.sub(one, lambda found: str(paths[found[1]]), text)


def with_folders(word: str, mounts: Mapping[str, Path]) -> str:
    """The document of a launcher, with folders of this machine for the claims of its job."""
    if not word.startswith("{"):
        return word

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(one) for one in value]
        if not isinstance(value, dict):
            return value
        if "persistentVolumeClaim" in value:
            path = str(next(iter(mounts.values())))
            return {"name": value["name"], "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
        return {key: walk(one) for key, one in value.items()}

    return json.dumps(walk(json.loads(word)))
