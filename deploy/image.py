"""Finishes an image: takes out what nothing in it runs, compiles what it runs, and lists the packages that are left.

``python image.py SBOM.json`` is run by root with the Python of the installation, in the file system of the image.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import py_compile
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGE = "tf-dist"
EXTRA = "controller"  # with which deploy/Dockerfile installs it
# What runs in containers: the controller, a step of Argo, the commands. Imported, it shows what has to be there.
PROGRAMS = (
    "tf_dist.cli.main",
    "tf_dist.argo.launcher.launcher",
    "tf_dist.argo.launcher.main",
    "tf_dist.cluster.client.client_config",
    "tf_dist.controller.manager",
    "tf_dist.core.gang.placement",
)
# Not imported by the packages themselves: tests, tools that compile, and what compilers and type checkers read.
UNUSED = ("tests", "test", "distutils", "f2py", "include")
UNUSED_SUFFIXES = (".a", ".c", ".h", ".pxd", ".pyi", ".pyx")
# Of the Python of the base. The installation sees none of the packages beside it (pip, setuptools).
UNUSED_OF_PYTHON = (
    *("ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tkinter", "turtledemo"),
    *("dist-packages", "site-packages", "../python3/dist-packages", "../../share/python-wheels"),
)

# Of its Debian, where it is one: converters of character sets, and what only the package manager runs. Its list of
# packages stays, for scanners.
UNUSED_OF_SYSTEM = (
    *("usr/lib/*/gconv", "usr/lib/*/perl-base", "usr/lib/*/libapt-*", "usr/lib/apt"),
    *("usr/bin/apt*", "usr/bin/perl*", "usr/share/perl5"),
)


def normal(name: str) -> str:
    """A project's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(name: str) -> set[str]:
    """What a distribution needs, whatever the platform; of extras, only those of ``EXTRA``."""
    found = set()
    for text in metadata.requires(name) or ():
        requirement, _, marker = text.partition(";")
        if "extra" not in marker or (name == PACKAGE and re.search(f"extra == .{EXTRA}.", marker)):
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
    """What is not needed of packages that others wrote: folders and files."""
    found = set()
    for name in names:
        for file in metadata.files(name) or ():
            folder = next((number for number, part in enumerate(file.parts[:-1]) if part in UNUSED and number), None)
            if folder is not None:
                found.add(Path(str(file.locate())).parents[len(file.parts) - folder - 2])
            elif file.suffix in UNUSED_SUFFIXES:
                found.add(Path(str(file.locate())))
    return found


def unused_of_python(library: Path) -> set[Path]:
    """What is not needed of a Python, by where its standard library is."""
    found = {library / name for name in UNUSED_OF_PYTHON} | set(library.glob("config-*"))
    return {one.resolve() for one in found if one.exists()}


def unused_of_system(root: Path) -> set[Path]:
    """What is not needed of the system that the Python is on."""
    return {path for pattern in UNUSED_OF_SYSTEM for path in root.glob(pattern)}


def remove(paths: Iterable[Path]) -> None:
    """Remove folders and files, also those within others that are removed."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def try_command(*arguments: str) -> None:
    """A command still runs, in this process: what it imports is imported here."""
    with contextlib.redirect_stdout(io.StringIO()):
        code = importlib.import_module("tf_dist.cli.main").run(list(arguments))
    if code:
        raise SystemExit(code)


def keep_compiled(programs: Iterable[str], folders: Iterable[Path]) -> None:
    """Of all that is compiled keep what these programs import: they start in half the time, and the rest is large.

    The compiled files are of the unchecked kind: Python uses them independent of the modification times that a
    container engine gives the sources.
    """
    for folder in folders:
        remove(list(folder.rglob("__pycache__")))
    for name in programs:
        importlib.import_module(name)
    for module in list(sys.modules.values()):
        file = Path(getattr(module, "__file__", None) or "")
        if file.suffix == ".py" and any(file.is_relative_to(folder) for folder in folders):
            py_compile.compile(str(file), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


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
    """Take out, compile, list."""
    kept = closure(PACKAGE)
    library = Path(sysconfig.get_path("stdlib"))
    remove(unused_files(kept - {PACKAGE}) | unused_of_python(library) | unused_of_system(Path("/")))
    try_command("install", "--offline", "--image=any")
    keep_compiled(PROGRAMS, (library, Path(sys.prefix)))
    file = Path(place)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(sbom(kept), indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
