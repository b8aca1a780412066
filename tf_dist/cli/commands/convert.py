"""``tf-dist convert``: a job in another format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tf_dist.cli import options, output
from tf_dist.client import exits

if TYPE_CHECKING:
    from tf_dist.client.yaml_files import FileProblem
    from tf_dist.core.model import Dialect


def convert(
    file: options.File,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="VERSION", help="kubeflow.org/v1, kubeflow.org/v1alpha1 or batch.volcano.sh/v1alpha1."
        ),
    ],
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 2 if something cannot be carried.")] = False,
) -> None:
    """Write a job in another format. What the other format cannot say is told on standard error."""
    from tf_dist.cli.findings import accepted
    from tf_dist.client.bundle import load
    from tf_dist.client.yaml_files import FileProblem
    from tf_dist.core.dialects import convert as converted

    target = _target(to)
    bundle = accepted(load([file]))
    documents = [written.content for written in bundle.companions]
    lost: list[FileProblem] = []
    for entry in bundle.jobs:
        result = converted(entry.document, target)
        documents.append(result.document)
        written = entry.written
        lost += [FileProblem(written.file, written.number, written.line(p.path), p, True) for p in result.lost]
    _tell(lost)
    output.data("yaml", documents if len(documents) > 1 else documents[0])
    if strict and lost:
        raise typer.Exit(exits.USAGE)


def _tell(lost: list[FileProblem]) -> None:
    from tf_dist.client.bundle import text_of

    for found in lost:
        output.warning(text_of(found), found.problem.hint)


def _target(text: str) -> Dialect:
    import difflib

    from tf_dist.core.model import Dialect
    from tf_dist.errors import InvalidJob, Problem

    known = [dialect.value for dialect in Dialect]
    if text in known:
        return Dialect(text)
    near = difflib.get_close_matches(text, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    raise InvalidJob([Problem("--to", f"there is no format {text!r}", hint)])
