"""A script where a job file may be: the options that make a job of it, which change the job of a file, too."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tf_dist.cli.options import run_option
from tf_dist.errors import InvalidJob, Problem

if TYPE_CHECKING:
    from tf_dist.client.job_files import JobFiles
    from tf_dist.client.tfjob import TFJob
    from tf_dist.core.model.overrides import Override

Program = Annotated[
    list[str] | None, typer.Argument(metavar="[-- ARGS…]", help="Arguments of a script.", show_default=False)
]
Workers = Annotated[int | None, run_option("workers", "N", short="-w", min=0)]
Ps = Annotated[int | None, run_option("ps", "N", min=0)]
Chief = Annotated[bool, typer.Option("--chief", help="Of a script: a chief beside the workers; else worker 0 leads.")]
Evaluator = Annotated[bool, typer.Option("--evaluator", help="Of a script: an evaluator.")]
Gpus = Annotated[
    int, typer.Option("--gpus", metavar="N", min=0, help="Of a script: GPUs of each replica but parameter servers.")
]
Image = Annotated[str, run_option("image", "IMAGE")]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        "-e",
        metavar="NAME[=VALUE]",
        help="A variable of every container; without a value that of this shell. A job file keeps those that it has.",
    ),
]
EnvFile = Annotated[
    list[str] | None,
    typer.Option("--env-file", metavar="FILE", help="Variables, NAME=VALUE or NAME a line; --env comes after them."),
]
Code = Annotated[str, run_option("code", "DIR")]
Queue = Annotated[str, run_option("queue_name", "QUEUE", name="--queue")]
Name = Annotated[str, typer.Option("--name", metavar="NAME", help="The name of the job.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be submitted as YAML, and end.")]

_NAME: Final = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_DOCUMENTS: Final = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobArguments:
    """What a command line says of a job."""

    program: Sequence[str] = ()
    """Arguments of a script."""
    workers: int | None = None
    ps: int | None = None
    chief: bool = False
    evaluator: bool = False
    gpus: int = 0
    image: str = ""
    env: Sequence[str] = ()
    """``NAME=VALUE`` or ``NAME`` each."""
    env_files: Sequence[str] = ()
    """Files with such lines."""
    code: str = ""
    queue: str = ""
    name: str = ""

    def load(
        self,
        files: Sequence[str],
        overrides: Sequence[Override] = (),
        *,
        strict: bool = False,
        change: Callable[[Any], Any] = lambda content: content,
    ) -> JobFiles:
        """The job of a script, or those of files, with what the command line says of them; InvalidJob."""
        from tf_dist.client.job_files import load_documents, load_job_files
        from tf_dist.client.yaml_files import YamlDocument

        scripts = [file for file in files if is_script(file)]
        if not scripts:
            return load_job_files(
                files, overrides, strict=strict, change=lambda content: change(self._changed(content, files))
            )
        if len(files) > 1:
            what = f"{scripts[0]} is a script, and runs alone"
            raise InvalidJob([Problem("FILE", what, "arguments of it come after --; job files go in another command")])
        folder = os.path.abspath(self.code or Path(scripts[0]).parent)
        document = self.of_script(os.path.abspath(scripts[0]), folder).to_dict()
        return load_documents([YamlDocument(scripts[0], None, document, None)], overrides, change=change)

    def of_script(self, script: str, folder: str) -> TFJob:
        """The job of a script, whose folder is ``folder``; InvalidJob in the words of the command line."""
        from tf_dist.client.tfjob import TFJob

        if self.workers == 0 and not self.chief:
            raise InvalidJob([Problem("--workers", "0 leaves nobody to train", "write --workers 1, or add --chief")])
        variables = self._variables()
        try:
            return TFJob.from_script(
                script,
                list(self.program),
                name=self.name,
                image=self.image,
                workers=1 if self.workers is None else self.workers,
                ps=self.ps or 0,
                chief=self.chief,
                evaluator=self.evaluator,
                gpus=self.gpus,
                code=folder,
                queue_name=self.queue,
                env_vars=variables,
            )
        except InvalidJob as error:
            raise InvalidJob(_in_options(error.problems)) from None

    def _changed(self, content: Any, files: Sequence[str]) -> Any:
        """The job of a file, changed. What only a script can be told is refused."""
        only = {"--chief": self.chief, "--evaluator": self.evaluator, "--gpus": self.gpus, "-- ARGS": self.program}
        hint = "write it into the file, or change it: --set PATH=VALUE, --set-json PATH=JSON"
        problems = [
            Problem(name, f"is for a script, and {files[0]} is a job file", hint) for name, x in only.items() if x
        ]
        if self.name and len(files) > 1:
            problems.append(Problem("--name", f"is for one job, and there are {len(files)} files", "submit it alone"))
        _refuse(problems)
        from tf_dist.core.dialects import apply_step_overrides
        from tf_dist.core.dialects.code_folder import with_code_annotation
        from tf_dist.core.pipeline.run_options import RunOptions

        given = RunOptions(workers=self.workers, ps=self.ps, image=self.image, env_vars=self._variables())
        changes = given.changes(queue=self.queue)
        if changes != RunOptions().changes():
            content = apply_step_overrides(content, changes)
        if self.code:
            content = with_code_annotation(content, os.path.abspath(self.code))
        if self.name:
            content = {**content, "metadata": {**content["metadata"], "name": self.name}}
        return content

    def _variables(self) -> dict[str, str]:
        lines = [(name, line) for name in self.env_files for line in _env_lines(name)]
        found: dict[str, str] = {}
        problems: list[Problem] = []
        for where, text in [*lines, *(("--env", text) for text in self.env)]:
            name, equals, value = text.partition("=")
            if not _NAME.fullmatch(name):
                what = f"{name!r} is not the name of a variable"
                problems.append(Problem(where, what, "write NAME=VALUE, or the NAME of a variable of this shell"))
            elif not equals and name not in os.environ:
                what = f"{name} is not set in this shell"
                problems.append(Problem(where, what, f"write {name}=VALUE, or set it before: export {name}=VALUE"))
            else:
                # Kubernetes expands $(NAME) in values and makes one dollar of two; a shell's value stands as it is.
                value = value if equals else os.environ[name]
                found[name] = value.replace("$", "$$") if "$(" in value or "$$" in value else value
        _refuse(problems)
        return found


def is_script(file: str) -> bool:
    """Whether it is a program, and not a job document: ``….py``, or an executable file with a ``#!`` line."""
    path = Path(file)
    if path.suffix == ".py" or path.suffix in _DOCUMENTS:
        return path.suffix == ".py"
    try:
        with path.open("rb") as opened:
            return os.access(path, os.X_OK) and opened.read(2) == b"#!"
    except OSError:
        return False


def _env_lines(file: str) -> list[str]:
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        what = f"{file} cannot be read: {getattr(error, 'strerror', '') or error}"
        raise InvalidJob([Problem("--env-file", what, "name a text file with lines NAME=VALUE")]) from None
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


_OPTIONS: Final = {"script": "FILE", "queue_name": "--queue", "env_vars": "--env", "args": "-- ARGS"}


def _in_options(problems: Iterable[Problem]) -> Iterator[Problem]:
    """Problems of the arguments of ``TFJob``, which the command line calls otherwise."""
    from dataclasses import replace

    for one in problems:
        yield replace(one, path=_OPTIONS.get(one.path, f"--{one.path.replace('_', '-')}"))


def _refuse(problems: Iterable[Problem]) -> None:
    if found := [*problems]:
        raise InvalidJob(found)
