"""Steps beside the job: waiting until a gang has its place, and leaving nothing behind."""

from __future__ import annotations

from typing import Any

from hera.workflows import Container, Parameter, Resources

from tf_dist.argo.step import IMAGE, Value, as_argument


def wait_admitted_step(
    job: str | Parameter, *, name: str = "wait-admitted", timeout: Value = "1h", image: str = IMAGE, **container: Any
) -> Container:
    """Wait until the gang of a job, that somebody else has submitted, has its place.

    ``job``: its name, or a reference to an output that is one. Ends with 75 when it has none in time, with 1 when it
    never will. ``container``: whatever a Hera container takes.
    """
    inputs: list[Parameter] = []
    what, limit = as_argument("job", job, inputs), as_argument("timeout", timeout, inputs)
    # After "--" nothing is an option: the workflow fills in the name.
    options = ["--for=admitted", f"--timeout={limit}", "--", what]
    return _container(name, ["tf-dist", "wait"], options, inputs, image, container)


def cleanup_step(*, name: str = "cleanup", all_jobs: bool = False, image: str = IMAGE, **container: Any) -> Container:
    """Delete the jobs of this workflow that still run (``all_jobs``: all of them): for an exit handler.

    It needs no arguments: jobs are known by the workflow's uid. Put it into the workflow's ``templates`` as well: an
    exit handler is named only. Argo runs none after ``argo terminate``; the launcher frees what it holds by itself.
    """
    options = ["--workflow-uid={{workflow.uid}}", *(["--all"] if all_jobs else [])]
    return _container(name, ["tf-dist", "argo-clean"], options, [], image, container)


def _container(
    name: str, command: list[str], args: list[str], inputs: list[Parameter], image: str, more: dict[str, Any]
) -> Container:
    given = {"resources": Resources(cpu_request="50m", memory_request="128Mi"), **more}
    return Container(name=name, image=image, command=command, args=args, inputs=[*inputs], **given)
