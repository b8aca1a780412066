"""The launcher as a program. It imports little before it prints its first line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Final

from tf_dist import __version__
from tf_dist.argo.launcher.launcher_arguments import LauncherOptions, help_text, read_arguments
from tf_dist.argo.launcher.log_writer import LogWriter
from tf_dist.client import exit_codes
from tf_dist.cluster.signals import Signals
from tf_dist.errors import InvalidJob, TFDistError

_STDOUT: Final = 1
_LAST_LINES: Final = 5.0  # seconds for the reader to read the remaining lines
_NEVER: Final = 0


def main(arguments: Sequence[str]) -> int:
    """Run a step. Returns the exit code (see ``contract``)."""
    if {"-h", "--help"}.intersection(arguments):
        sys.stdout.write(f"{help_text()}\n")
        return exit_codes.SUCCEEDED
    try:
        options = read_arguments(arguments)
    except InvalidJob as error:
        sys.stderr.write(f"{error_text(error)}\n")
        return exit_codes.exit_code_of_error(error)
    if options.dry_run:
        return _show(options)
    with Signals(exit_after=_NEVER) as signals, closing(LogWriter(_STDOUT)) as log_writer:
        signals.listen(lambda _: log_writer.hurry())
        tries = f", try {options.retry + 1} of {options.retries + 1}" if options.retries else ""
        log_writer.say(f"tf-dist {__version__}{f': step {options.node}' if options.node else ''}{tries}")
        try:
            from tf_dist.argo.launcher.launcher import run_step

            code = run_step(options, signals, log_writer)
        except TFDistError as error:
            code = exit_codes.exit_code_of_error(error)
            log_writer.say(error_text(error))
        log_writer.finish(_LAST_LINES)
        return code


def _show(options: LauncherOptions) -> int:
    """Print the job that would be created, as YAML."""
    from tf_dist.argo.launcher.step_job import step_document
    from tf_dist.client.yaml_files import to_yaml

    try:
        entry, _ = step_document(options, options.namespace or "default")
    except TFDistError as error:
        sys.stderr.write(f"{error_text(error)}\n")
        return exit_codes.exit_code_of_error(error)
    sys.stdout.write(to_yaml(entry.document))
    return exit_codes.SUCCEEDED


def error_text(error: TFDistError) -> str:
    """The error, with its hint."""
    from tf_dist.client.job_files import InvalidFiles, whole_text

    if isinstance(error, InvalidFiles):
        return "\n".join(whole_text(one) if one.warning else f"error: {whole_text(one)}" for one in error.found)
    if isinstance(error, InvalidJob):
        return "\n".join(f"error: {problem}" for problem in error.problems)
    return f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else "")
