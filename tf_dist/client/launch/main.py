"""The launcher as a program. Little is loaded before its first line is out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Final

from tf_dist import __version__
from tf_dist.client import exits
from tf_dist.client.launch.arguments import Options, parse
from tf_dist.client.launch.relay import Relay
from tf_dist.driver.signals import Signals
from tf_dist.errors import InvalidJob, TFDistError

_STDOUT: Final = 1
_LAST_LINES: Final = 5.0  # seconds for a reader to take what is left
_NEVER: Final = 0


def main(arguments: Sequence[str]) -> int:
    """Run a step; its exit code (see ``contract``). SystemExit 2 for a wrong command line."""
    options = parse(arguments)
    if options.dry_run:
        return _show(options)
    with Signals(patience=_NEVER) as signals, closing(Relay(_STDOUT)) as relay:
        signals.listen(lambda _: relay.hurry())
        relay.say(_first_line(options))
        try:
            from tf_dist.client.launch.step import run

            code = run(options, signals, relay)
        except TFDistError as error:
            code = exits.code_of(error)
            relay.say(explained(error))
        relay.finish(_LAST_LINES)
        return code


def _show(options: Options) -> int:
    """The job that would be created, as YAML."""
    from tf_dist.client.launch.order import order
    from tf_dist.client.yaml_writing import to_yaml

    try:
        entry, _ = order(options, options.namespace or "default")
    except TFDistError as error:
        sys.stderr.write(f"{explained(error)}\n")
        return exits.code_of(error)
    sys.stdout.write(to_yaml(entry.document))
    return exits.DONE


def _first_line(options: Options) -> str:
    tries = f", try {options.retry + 1} of {options.retries + 1}" if options.retries else ""
    return f"tf-dist {__version__}{f': step {options.node}' if options.node else ''}{tries}"


def explained(error: TFDistError) -> str:
    """The error, and the way out."""
    if isinstance(error, InvalidJob):
        return "\n".join(f"error: {problem}" for problem in error.problems)
    return f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else "")
