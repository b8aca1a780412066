"""Map the mounts of containers to folders of this machine, because the double of Argo runs no containers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def placed(text: str, paths: Mapping[str, Path], home: Path) -> str:
    """The text with container paths replaced by paths of this machine. Paths below ``home`` are already local."""
    inside = "|".join(re.escape(path) for path in sorted(paths, key=len, reverse=True))
    ends = r"(?=[/\s'\"\]},:]|$)"
    one = rf"(?<![\w./-])(?!{re.escape(str(home))})({inside}){ends}"
    return re.sub(one, lambda found: str(paths[found[1]]), text)


def with_folders(word: str, mounts: Mapping[str, Path]) -> str:
    """The document of a launcher, with claims of its job replaced by folders of this machine."""
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
