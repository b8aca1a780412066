"""The entry point: runs a command and turns its result or error into a message and an exit code."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence
from typing import Any

from tf_dist.cli import output
from tf_dist.cli.command_table import asks_for_help, help_text
from tf_dist.client import exit_codes
from tf_dist.errors import InvalidJob, TFDistError

_REPORT = "this is a defect of tf-dist; please report it with the output of the same command under TF_DIST_DEBUG=1"
_OF_THE_MACHINE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)
"""Errors of writes and of the process, which name no file."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and exit with its exit code."""
    gc.set_threshold(100_000, 20, 100)  # Imported modules stay in memory. Collecting them would take 10% of the start.
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run one command, and return its exit code. Handles all exceptions."""
    output.configure(plain=False)
    try:
        code = _call(arguments)
        output.flush()
    except output.OutputClosed as closed:
        code = _output_closed(closed.reason)
    except KeyboardInterrupt:
        code = exit_codes.SIGNAL_BASE + 2
    except TFDistError as error:
        code = _explain(error)
    except OSError as error:
        code = _refused(error)
    except Exception as error:
        code = _defect(error, arguments)
    return code


def _call(arguments: list[str]) -> int:
    if arguments[:1] == ["argo-launch"]:
        # argo-launch parses its own command line, and the first line of a step must not wait for other imports.
        from tf_dist.argo.launcher.main import main as launch

        return launch(arguments[1:])
    if asks_for_help(arguments) and "_TF_DIST_COMPLETE" not in os.environ:
        output.line(help_text())
        return exit_codes.SUCCEEDED if {"-h", "--help"} & set(arguments) else exit_codes.USAGE
    from tf_dist.cli.app import command_line

    code = command_line(arguments)(args=arguments, prog_name="tf-dist", standalone_mode=False)
    return code if isinstance(code, int) else exit_codes.SUCCEEDED


def _explain(error: TFDistError) -> int:
    _trace(error)
    found = getattr(error, "found", None)
    if found is not None:
        from tf_dist.client.job_files import problem_text

        for one in found:
            (output.warning if one.warning else output.failure)(problem_text(one), one.problem.hint)
    elif isinstance(error, InvalidJob):
        for problem in error.problems:
            output.failure(f"{problem.path}: {problem.message}" if problem.path else problem.message, problem.hint)
    else:
        output.failure(str(error), error.hint)
    for note in getattr(error, "__notes__", ()):
        output.warning(note)
    return exit_codes.exit_code_of_error(error)


def _refused(error: OSError) -> int:
    """Report what the operating system refuses, such as a write to a full disk. It is not a defect of tf-dist."""
    _trace(error)
    try:
        os.getcwd()
    except OSError:
        output.failure("the current folder does not exist any more, or cannot be read", "change to another folder: cd")
        return exit_codes.FAILED
    if not isinstance(error.filename, str | bytes) and error.errno not in _OF_THE_MACHINE:
        output.failure(f"{type(error).__name__}: {error}", _REPORT)
        return exit_codes.FAILED
    where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
    output.failure(f"{where}{error.strerror}", "check that the path exists, your permissions, and the free disk space")
    return exit_codes.FAILED


def _defect(error: Exception, arguments: Sequence[str]) -> int:
    if hasattr(error, "exit_code") and hasattr(error, "format_message"):
        return _usage(error, arguments)
    _trace(error)
    output.failure(f"{type(error).__name__}: {error}", _REPORT)
    return exit_codes.FAILED


def _usage(error: Any, arguments: Sequence[str]) -> int:
    """Report a usage error of Typer, such as an unknown option or an invalid value, unless Typer has shown the help."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "tf-dist"
    if message := _usage_text(error):
        hint = _script_hint(error, path, arguments) or _kubectl_hint(error, path)
        output.failure(message, hint or f"{path} --help shows what it accepts")
    return exit_codes.USAGE


def _script_hint(error: Any, path: str, arguments: Sequence[str]) -> str:
    """A hint for an option of a script that was given before ``--``."""
    name = getattr(error, "option_name", "")
    script = next((word for word in arguments if word.endswith(".py")), "")
    if not name or not script or error.ctx is None or all(one.name != "gpus" for one in error.ctx.command.params):
        return ""
    return f"arguments of {script} come after --: {path} {script} -- {name} …"


def _usage_text(error: Any) -> str:
    """Typer's message, with the invalid value added if the message omits it."""
    if getattr(error, "possibilities", ()):  # Click sorts options alphabetically
        from tf_dist.core.model.fieldpath import nearest_word  # imported late: tf-dist --help imports no core modules

        near = nearest_word(error.option_name, error.possibilities)
        return f"No such option: {error.option_name}. Did you mean {near or ', '.join(error.possibilities)}?"
    text = str(error.format_message()).replace("Value error, ", "")
    for one in getattr(error.__cause__, "errors", list)():
        given = repr(one.get("input"))
        text = text if given in text else f"{text} ({given})"
    return text


def _kubectl_hint(error: Any, path: str) -> str:
    """A hint for kubectl's option for files, because commands take files as arguments."""
    if getattr(error, "option_name", "") not in ("-f", "--filename", "--file"):
        return ""
    arguments = [one.metavar for one in error.ctx.command.params if one.param_type_name == "argument"]
    return next((f"files are named without it: {path} {one}" for one in arguments if str(one).startswith("FILE")), "")


def _trace(error: BaseException) -> None:
    """Print the traceback if TF_DIST_DEBUG is set."""
    if os.environ.get("TF_DIST_DEBUG", "") not in ("", "0"):
        import traceback

        output.note("".join(traceback.format_exception(error)).rstrip())


def _output_closed(reason: str) -> int:
    """Standard output is closed. Prevent Python's second error message at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
    if not reason:
        return exit_codes.BROKEN_PIPE
    output.failure(f"cannot write to standard output: {reason}", "free disk space, or redirect the output elsewhere")
    return exit_codes.FAILED


if __name__ == "__main__":
    main()
