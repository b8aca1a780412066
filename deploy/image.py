"""Finishes an installation that goes into an image: takes out what runs nowhere in it, and lists what is left.

``python image.py SBOM.json`` is run by the Python of the installation.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

# Not imported by the packages themselves.
UNUSED = ("tests", "test")
PACKAGE = "tf-dist"


def normal(name: str) -> str:
    """A project's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(name: str) -> set[str]:
    """What a distribution needs without its extras, whatever the platform: what is not installed counts for nothing."""
    found = set()
    for text in metadata.requires(name) or ():
        requirement, _, marker = text.partition(";")
        if "extra" not in marker:
            found.add(normal(re.match(r"[\w.-]+", requirement.strip())[0]))  # type: ignore[index]
    return found


def closure(name: str) -> set[str]:
    """A distribution and all that it needs and is installed."""
    found: set[str] = set()
    left = [normal(name)]
    while left:
        one = left.pop()
        if one in found:
            continue
        try:
            needed = requirements(one)
        except metadata.PackageNotFoundError:
            continue
        found.add(one)
        left += needed
    return found


def unused_files(names: Iterable[str]) -> set[Path]:
    """Folders of tests in packages that others wrote, and stubs for type checkers."""
    found = set()
    for name in names:
        for file in metadata.files(name) or ():
            folder = next((number for number, part in enumerate(file.parts[:-1]) if part in UNUSED and number), None)
            if folder is not None:
                found.add(Path(str(file.locate())).parents[len(file.parts) - folder - 2])
            elif file.suffix == ".pyi":
                found.add(Path(str(file.locate())))
    return found


def sbom(names: Iterable[str]) -> dict[str, Any]:
    """What is installed, in the form of CycloneDX 1.5."""
    components = [component(name) for name in sorted(names)]
    references = {one["name"]: one["bom-ref"] for one in components}
    needs = [
        {"ref": reference, "dependsOn": sorted(references[one] for one in requirements(name) if one in references)}
        for name, reference in references.items()
    ]
    main = next(one for one in components if one["name"] == PACKAGE)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**main, "type": "application"}},
        "components": [one for one in components if one is not main],
        "dependencies": needs,
    }


def component(name: str) -> dict[str, Any]:
    """One distribution."""
    about = metadata.metadata(name)
    purl = f"pkg:pypi/{name}@{about['Version']}"
    found: dict[str, Any] = {
        "type": "library",
        "name": name,
        "version": about["Version"],
        "purl": purl,
        "bom-ref": purl,
    }
    if expression := about.get("License-Expression"):
        found["licenses"] = [{"expression": expression}]
    else:
        trove = [
            one.rpartition(" :: ")[2] for one in about.get_all("Classifier") or () if one.startswith("License :: ")
        ]
        if trove:
            found["licenses"] = [{"license": {"name": one}} for one in trove]
    return found


def main(place: str) -> None:
    """Take out, then list."""
    kept = closure(PACKAGE)
    for path in unused_files(kept - {PACKAGE}):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    file = Path(place)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(sbom(kept), indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
