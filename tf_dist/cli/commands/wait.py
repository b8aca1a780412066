"""``tf-dist wait``: until jobs are where one wants them."""

from __future__ import annotations

from typing import Annotated

import typer

from tf_dist.cli import options, output


def wait(
    jobs: options.Names,
    goal: Annotated[
        str,
        typer.Option(
            "--for", metavar="STATE", help="succeeded, failed, finished, running, admitted, suspended or deleted."
        ),
    ] = "finished",
    namespace: options.Namespace = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
    timeout: options.Timeout = "",
) -> None:
    """Wait until jobs have come to a state. Exits at once with 1 if one can never come there, with 75 if not in time.

    kubectl's form works too: --for=condition=Succeeded, --for=delete.
    """
    from tf_dist.cli.arguments import seconds
    from tf_dist.client.connect import connect
    from tf_dist.client.jobs import find
    from tf_dist.client.waiting import wait_for
    from tf_dist.errors import NotFound

    state, limit = _state(goal), seconds(timeout)
    connection = connect(kubeconfig, context, local=local)
    cluster, namespace = connection.cluster, namespace or connection.namespace
    found = []
    for name in jobs:
        try:
            found.append(find(cluster, name, namespace))
        except NotFound:
            if state != "deleted":
                raise
    wait_for(cluster, found, state, limit, output.line)


_SAME = {"delete": "deleted", "created": "admitted", "complete": "succeeded", "completed": "succeeded"}


def _state(text: str) -> str:
    import difflib

    from tf_dist.core.outcome import WAITS
    from tf_dist.errors import InvalidJob, Problem

    word = text.removeprefix("condition=").removesuffix("=true").removesuffix("=True").lower()
    word = _SAME.get(word, word)
    if word in WAITS:
        return word
    near = difflib.get_close_matches(word, WAITS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(WAITS)}"
    raise InvalidJob([Problem("--for", f"there is no state {text!r} to wait for", hint)])
