"""The image, as far as it can be judged without an engine: what is copied is there, and what it runs as fits."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tf_dist.cli.install.install_options import InstallOptions
from tf_dist.cli.install.workload import manifest_files

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
IGNORED = (ROOT / ".dockerignore").read_text().split("\n")

Instruction = tuple[str, str]


def stages() -> list[list[Instruction]]:
    """The instructions of each stage; those before the first FROM are a stage of their own."""
    text = re.sub(r"\\\n\s*", "", "\n".join(x for x in DOCKERFILE.read_text().splitlines() if not x.startswith("#")))
    found: list[list[Instruction]] = [[]]
    for line in filter(None, text.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest))
    return found


def values(stage: list[Instruction], word: str) -> list[str]:
    return [rest for found, rest in stage if found == word]


HEAD, BUILD, FINAL = stages()


def test_both_stages_start_from_any_python() -> None:
    assert HEAD == [("ARG", "BASE=python:3.13-slim")]
    assert BUILD[0] == ("FROM", "${BASE} AS build")
    assert FINAL[0] == ("FROM", "${BASE}")


@pytest.mark.parametrize(
    "source", [name for copied in values(BUILD, "COPY") for name in copied.split()[:-1]], ids=lambda name: name
)
def test_what_is_copied_is_there_and_reaches_the_engine(source: str) -> None:
    assert (ROOT / source).exists()
    assert f"!{source}" in IGNORED


def test_nothing_else_reaches_the_engine() -> None:
    let_through = {line[1:] for line in IGNORED if line.startswith("!")}
    copied = {name for rest in values(BUILD, "COPY") for name in rest.split()[:-1]}
    assert IGNORED[1] == "*"
    assert let_through == copied
    assert any(fnmatch("tf_dist/core/__pycache__", line) for line in IGNORED)


def test_the_versions_are_those_of_the_constraints() -> None:
    (run,) = values(BUILD, "RUN")
    assert "--constraint constraints.txt" in run


def test_the_last_stage_takes_the_program_and_no_tool_that_built_it() -> None:
    assert values(FINAL, "COPY") == ["--from=build /opt/tf-dist /opt/tf-dist"]
    assert not values(FINAL, "RUN")
    assert json.loads(values(FINAL, "ENTRYPOINT")[0]) == ["tf-dist"]


def test_it_runs_as_the_user_that_the_deployment_names() -> None:
    (deployment,) = (one for one in manifest_files(InstallOptions())["controller.yaml"] if one["kind"] == "Deployment")
    security = deployment["spec"]["template"]["spec"]["securityContext"]
    assert values(FINAL, "USER") == [f"{security['runAsUser']}:{security['runAsGroup']}"]
