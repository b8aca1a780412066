"""Scripts instead of job files: the options that make a job from a script. They also change the job of a file."""

from __future__ import annotations

import base64
import os
import re
import secrets
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tf_dist.cli import output
from tf_dist.cli.options import run_option
from tf_dist.errors import InvalidJob, Problem

if TYPE_CHECKING:
    from tf_dist.client.job_files import JobFiles
    from tf_dist.client.tfjob import TFJob
    from tf_dist.core.model.overrides import Override

Program = Annotated[
    list[str] | None, typer.Argument(metavar="-- ARGS…", help="Arguments of a script.", show_default=False)
]
Workers = Annotated[int | None, run_option("workers", "N", short="-w", min=0)]
Ps = Annotated[int | None, run_option("ps", "N", min=0)]
Chief = Annotated[bool, typer.Option("--chief", help="For a script: add a chief. Without it, worker 0 is the chief.")]
Evaluator = Annotated[bool, typer.Option("--evaluator", help="For a script: add an evaluator.")]
Gpus = Annotated[
    int,
    typer.Option("--gpus", metavar="N", min=0, help="For a script: GPUs of each replica, except parameter servers."),
]
Image = Annotated[str, run_option("image", "IMAGE")]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        "-e",
        metavar="NAME[=VALUE]",
        help=(
            "A variable of every container. NAME alone takes the value from this shell and stores it in a Secret. "
            "Variables of a job file are not replaced."
        ),
    ),
]
EnvFile = Annotated[
    list[str] | None,
    typer.Option(
        "--env-file",
        metavar="FILE",
        help="A file with NAME=VALUE or NAME on each line. The values are stored in a Secret; --env overrides them.",
    ),
]
Code = Annotated[str, run_option("code", "DIR")]
Package = Annotated[
    list[str] | None,
    typer.Option(
        "--package",
        metavar="PACKAGE",
        help="A Python package that the image does not have (tensorflow-datasets==4.9.7): each pod installs it at its "
        "start. On this machine it must be installed.",
    ),
]
Queue = Annotated[str, run_option("queue_name", "QUEUE", name="--queue")]
Name = Annotated[str, typer.Option("--name", metavar="NAME", help="The name of the job.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be submitted as YAML, and exit.")]

_NAME: Final = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_DOCUMENTS: Final = (".yaml", ".yml", ".json")
_NONCE: Final = 3  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JobArguments:
    """The job arguments of a command line."""

    program: Sequence[str] = ()
    """The arguments of the script."""
    workers: int | None = None
    ps: int | None = None
    chief: bool = False
    evaluator: bool = False
    gpus: int = 0
    image: str = ""
    env: Sequence[str] = ()
    """Variables, each as ``NAME=VALUE`` or ``NAME``."""
    env_files: Sequence[str] = ()
    """Files with a variable on each line."""
    code: str = ""
    packages: Sequence[str] = ()
    """Python packages that replicas need, as requirements of pip."""
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
        """Load the job of a script, or the jobs of files, and apply these arguments. Raises InvalidJob."""
        from tf_dist.client.job_files import load_documents, load_job_files
        from tf_dist.client.yaml_files import YamlDocument

        _refuse(problem for file in files for problem in _no_script(file))
        scripts = [file for file in files if is_script(file)]
        if len(files) > 1 and scripts:
            what = f"{scripts[0]} is a script, and must be the only file"
            raise InvalidJob([Problem("FILE", what, "arguments of it come after --; job files go in another command")])
        shown, hidden = self.variables()
        nonce = secrets.token_hex(_NONCE)

        def changed(content: Any) -> Any:
            if not scripts:
                content = self._changed(content, files)
            return change(_with_variables(content, shown, hidden, nonce))

        if scripts:
            folder = os.path.abspath(self.code or Path(scripts[0]).parent)
            document = self.of_script(scripts[0], folder).to_dict()
            found = load_documents([YamlDocument(scripts[0], None, document, None)], overrides, change=changed)
        else:
            found = load_job_files(files, overrides, strict=strict, change=changed)
        if not hidden:
            return found
        jobs = (replace(one, owned=(_secret(one.job.key.name, nonce, hidden),)) for one in found.jobs)
        return replace(found, jobs=tuple(jobs))

    def of_script(self, script: str, folder: str, env_vars: Mapping[str, str] = MappingProxyType({})) -> TFJob:
        """The job of a script in ``folder``. Raises InvalidJob with problems that name options."""
        from tf_dist.client.tfjob import TFJob

        if self.workers == 0 and not self.chief:
            raise InvalidJob(
                [Problem("--workers", "0 leaves no replica that trains", "write --workers 1, or add --chief")]
            )
        try:
            return TFJob.from_script(
                script,
                [*map(_literal, self.program)],
                name=self.name,
                image=self.image,
                workers=1 if self.workers is None else self.workers,
                ps=self.ps or 0,
                chief=self.chief,
                evaluator=self.evaluator,
                gpus=self.gpus,
                code=folder,
                packages=self.packages,
                queue_name=self.queue,
                env_vars=dict(env_vars),
            )
        except InvalidJob as error:
            raise InvalidJob(_in_options(error.problems)) from None

    def _changed(self, content: Any, files: Sequence[str]) -> Any:
        """The job of a file with the options applied. Raises InvalidJob for options that only scripts accept."""
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
        from tf_dist.core.model.overrides import Override, apply_overrides
        from tf_dist.core.pipeline.run_options import RunOptions

        given = RunOptions(workers=self.workers, ps=self.ps, image=self.image, packages=self.packages)
        changes = given.changes(queue=self.queue)
        if changes != RunOptions().changes():
            content = apply_step_overrides(content, changes)
        if self.code:
            content = with_code_annotation(content, os.path.abspath(self.code))
        return apply_overrides(content, [Override(("metadata", "name"), self.name)] if self.name else [])

    def variables(self) -> tuple[dict[str, str], dict[str, str]]:
        """Variables with values on the command line, escaped for a document, and all others. Raises InvalidJob."""
        shown: dict[str, str] = {}
        hidden: dict[str, str] = {}
        problems: list[Problem] = []
        for file in self.env_files:
            for number, text in _env_lines(file):
                name, equals, value = (part.strip() for part in text.removeprefix("export ").partition("="))
                if not _NAME.fullmatch(name) or not (equals or name in os.environ):
                    # The message omits the line, which may contain a secret.
                    what = f"{file}, line {number}, is not a variable"
                    problems.append(Problem("--env-file", what, _WAYS))
                    continue
                quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
                hidden[name] = (value[1:-1] if quoted else value) if equals else os.environ[name]
        for text in self.env:
            name, equals, value = text.partition("=")
            if not _NAME.fullmatch(name):
                problems.append(Problem("--env", f"{name!r} is not the name of a variable", _WAYS))
            elif equals:
                hidden.pop(name, None)
                shown[name] = _literal(value)
            elif name in os.environ:
                shown.pop(name, None)
                hidden[name] = os.environ[name]
            else:
                what = f"{name} is not set in this shell"
                problems.append(Problem("--env", what, f"write {name}=VALUE, or set it before: export {name}=VALUE"))
        _refuse(problems)
        return shown, hidden


_WAYS: Final = "write NAME=VALUE, or the NAME of a variable of this shell"


def _literal(text: str) -> str:
    """Escape a text for a container. Kubernetes expands ``$(NAME)``, and reduces ``$$`` to one dollar sign."""
    return text.replace("$", "$$") if "$(" in text or "$$" in text else text


def _secret_name(job: object, nonce: str) -> str:
    return f"{job}-env-{nonce}"


def _secret(job: str, nonce: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """The Secret for variables whose values must not be in the job, because more people can read the job."""
    data = {name: base64.b64encode(os.fsencode(value)).decode() for name, value in variables.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": _secret_name(job, nonce)}, "data": data}


def _with_variables(content: Any, shown: Mapping[str, str], hidden: Mapping[str, str], nonce: str) -> Any:
    if not shown and not hidden:
        return content
    from tf_dist.core.dialects import StepOverrides, apply_step_overrides
    from tf_dist.core.model.fieldpath import mapping

    secret = _secret_name(mapping(mapping(content).get("metadata")).get("name"), nonce)
    references = {name: {"secretKeyRef": {"name": secret, "key": name}} for name in hidden}
    return apply_step_overrides(content, StepOverrides(env={**shown, **references}))


def print_documents(files: JobFiles, *, packed: bool) -> None:
    """Print the documents to submit, without the Secrets of variables."""
    from tf_dist.client.submission import submitted_documents

    output.data("yaml", submitted_documents(files, packed=packed))
    for secret in (one for entry in files.jobs for one in entry.owned):
        words = ["kubectl", "create", "secret", "generic", secret["metadata"]["name"]]
        words += [f'--from-literal={name}="${name}"' for name in secret["data"]]
        output.note(f"not printed: Secret {words[4]} with the values of {', '.join(secret['data'])}")
        output.note(f"  to create it by hand: {' '.join(words)}")


def is_script(file: str) -> bool:
    """Whether the file is a program: ``….py``, or an executable file with a ``#!`` line."""
    path = Path(file)
    if path.suffix == ".py" or path.suffix in _DOCUMENTS:
        return path.suffix == ".py"
    try:
        with path.open("rb") as opened:
            return os.access(path, os.X_OK) and opened.read(2) == b"#!"
    except OSError:
        return False


def _no_script(file: str) -> Iterator[Problem]:
    """Problems of a path that is neither a job file nor a script that can run."""
    from tf_dist.client.yaml_files import is_address

    path = Path(file)
    if path.suffix == ".py" and is_address(file):
        yield Problem("FILE", f"{file} is an address", "download it, and name the file")
    if os.path.isdir(file):  # false for an empty name
        yield Problem("FILE", f"{file} is a folder", "name the script or the job file in it")
    if not os.path.isfile(path) or path.suffix in (".py", *_DOCUMENTS):
        return
    if path.suffix == ".ipynb":
        hint = f"convert it to a script: jupyter nbconvert --to script {shlex.quote(file)}"
        yield Problem("FILE", f"{file} is a notebook", hint)
        return
    try:
        with path.open("rb") as opened:
            has_line = opened.read(2) == b"#!"
    except OSError:
        return
    if not has_line and path.suffix == ".sh":
        yield Problem("FILE", f"{file} has no #! line", "start it with #!/bin/sh")
    elif has_line and not os.access(path, os.X_OK):
        yield Problem("FILE", f"{file} is not executable", f"allow it: chmod +x {shlex.quote(file)}")


def _env_lines(file: str) -> list[tuple[int, str]]:
    """The lines of a file with their numbers, without empty lines and comments."""
    try:
        lines = Path(file).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", "") or "it is not text in UTF-8"
        raise InvalidJob([Problem("--env-file", f"{file} cannot be read: {what}", _WAYS)]) from None
    found = ((number, line.strip()) for number, line in enumerate(lines, 1))
    return [(number, line) for number, line in found if line and not line.startswith("#")]


_OPTIONS: Final = {
    "script": "FILE",
    "queue_name": "--queue",
    "env_vars": "--env",
    "args": "-- ARGS",
    "packages": "--package",
}


def _in_options(problems: Iterable[Problem]) -> Iterator[Problem]:
    """The same problems, with the arguments of ``TFJob`` replaced by options of the command line."""
    for one in problems:
        name = one.path.partition("[")[0]
        yield replace(one, path=_OPTIONS.get(name, f"--{name.replace('_', '-')}"))


def _refuse(problems: Iterable[Problem]) -> None:
    if found := [*problems]:
        raise InvalidJob(found)
