"""``tf-dist argo-launch``, ``argo-clean``, ``workflows``: steps of Argo workflows, and workflows as YAML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tf_dist.cli import options, output

PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Typer's settings for ``argo-launch``, which parses its own command line, including ``--help``."""


def argo_launch(context: typer.Context) -> None:
    """Run a job as a step of an Argo workflow; TFJobStep and the exported templates call it."""
    from tf_dist.argo.launcher.main import main

    raise typer.Exit(main(context.args))


def argo_clean(
    workflow_uid: Annotated[str, typer.Option("--workflow-uid", metavar="UID", help="The workflow: {{workflow.uid}}.")],
    all_jobs: Annotated[bool, typer.Option("--all", help="Also jobs that have ended.")] = False,
    namespace: options.Namespace = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    timeout: options.Timeout = "2m",
) -> None:
    """Delete the running jobs of an Argo workflow and wait until they are deleted, for an exit handler."""
    from tf_dist.argo.launcher.step_cleanup import delete_workflow_jobs
    from tf_dist.client.connection import connect
    from tf_dist.core.model.wording import counted
    from tf_dist.errors import InvalidJob, Problem

    if not workflow_uid:
        raise InvalidJob([Problem("--workflow-uid", "is empty", "write --workflow-uid={{workflow.uid}}")])
    limit = options.parse_seconds(timeout)
    connection = connect(kubeconfig, context)
    space = namespace or connection.namespace
    count = delete_workflow_jobs(
        connection.cluster, space, workflow_uid, output.line, all_jobs=all_jobs, timeout=limit or 0.0
    )
    output.line(f"{counted(count, 'job')} deleted")


app = typer.Typer(
    no_args_is_help=True, help="Workflows for Argo.", context_settings={"help_option_names": ["-h", "--help"]}
)

_TRAINING: Final = "tf-dist/digits:latest"
_CLUSTER_WIDE: Final = frozenset({"ClusterWorkflowTemplate", "ClusterRoleBinding"})
_NOT_ALONE: Final = "digits-job.yaml"  # only a part of other files
_VOLCANO_JOBS: Final = {"apiGroups": ["batch.volcano.sh"], "resources": ["jobs"]}


@app.callback()
def _workflows() -> None:
    """Keep ``export`` a subcommand, although it is the only command of the group."""


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="The folder to write to.", metavar="DIR")],
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace", "-n", metavar="NS", callback=options.check_namespaces, help="The namespace of the workflows."
        ),
    ] = "",
    image: Annotated[str, typer.Option("--image", help="tf-dist's image (default: tf-dist:VERSION).")] = "",
    job_image: Annotated[
        str, typer.Option("--job-image", help="The image that trains in the examples (default: tf-dist/digits:latest).")
    ] = "",
    volcano_jobs: Annotated[bool, typer.Option("--volcano-jobs", help="Steps may also run Volcano Jobs.")] = False,
) -> None:
    """Write templates, examples, accounts with their roles, and a claim for models.

    Use kubectl apply -f, or argo submit for a Workflow. An administrator of the namespace may apply all files except
    tf-dist-cluster-templates.yaml and rbac-driver.yaml, which lets steps run jobs without a controller.
    """
    from tf_dist import __version__
    from tf_dist.client.yaml_files import to_yaml
    from tf_dist.core.pipeline.run_options import argument_problems
    from tf_dist.errors import InvalidJob

    given_images = {"--image": image, "--job-image": job_image}
    if problems := [
        one for name, value in given_images.items() for one in argument_problems("image", value, path=name)
    ]:
        raise InvalidJob(problems)
    images = {one: given for one, given in ((f"tf-dist:{__version__}", image), (_TRAINING, job_image)) if given}
    names = sorted(path.name for path in home().glob("*.yaml") if path.name != _NOT_ALONE)
    files = {
        name: to_yaml([_with_images(one, images) for one in documents(name, namespace, volcano=volcano_jobs)])
        for name in names
    }
    output.write_files(files, folder, "give another folder")
    if not image:
        output.warning(
            f"the image tf-dist:{__version__} is not in a registry: steps start only on nodes that have it",
            "build and push it (deploy/Dockerfile), then add --image REGISTRY/tf-dist:TAG",
        )


def documents(name: str, namespace: str, *, volcano: bool = False) -> list[Any]:
    """The objects of a file, in this namespace ("": as in the file). ``volcano``: steps may also run Volcano Jobs."""
    import yaml

    found = [_placed(one, namespace) for one in yaml.safe_load_all((home() / name).read_text(encoding="utf-8"))]
    for one in found:
        if volcano and one["kind"] == "Role":
            one["rules"] += [{**rule, **_VOLCANO_JOBS} for rule in one["rules"] if "tfjobs" in rule["resources"]]
    return found


def home() -> Path:
    """The folder of the workflows: inside the package, or next to it in a checkout."""
    import tf_dist

    package = Path(tf_dist.__file__).parent
    inside = package / "workflows"
    return inside if inside.is_dir() else package.parent / "workflows"


def _placed(document: Any, namespace: str) -> Any:
    if not namespace:
        return document
    metadata = document["metadata"]
    if document["kind"] not in _CLUSTER_WIDE:
        metadata["namespace"] = namespace
    elif document["kind"] == "ClusterRoleBinding":
        metadata["name"] = metadata["name"].replace("default", namespace)
    for subject in document.get("subjects", ()):
        subject["namespace"] = namespace
    return document


def _with_images(value: Any, images: Mapping[str, str]) -> Any:
    """Replace images in all values that consist only of an image, including defaults of parameters."""
    if isinstance(value, list):
        return [_with_images(one, images) for one in value]
    if isinstance(value, dict):
        return {key: _with_images(one, images) for key, one in value.items()}
    return images.get(value, value) if isinstance(value, str) else value
