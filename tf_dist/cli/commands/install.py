"""``tf-dist install``: prints the manifests that a cluster needs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tf_dist.cli import options, output
from tf_dist.client import exit_codes
from tf_dist.core.model.names import SYSTEM_NAMESPACE

if TYPE_CHECKING:
    from tf_dist.cli.install.cluster_check import DefinitionDifference
    from tf_dist.cluster.client.rest import RestCluster

_IMAGE: Final = re.compile(r"[\w][\w./:-]*(@sha256:[0-9a-f]{64})?")


def install(
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NS",
            callback=options.check_namespaces,
            help="The controller's namespace (default: tf-dist-system).",
        ),
    ] = "",
    image: Annotated[str | None, typer.Option("--image", help="The image (default: tf-dist:VERSION).")] = None,
    replicas: Annotated[
        int, typer.Option("--replicas", min=1, help="The number of controllers. One of them is the leader.")
    ] = 2,
    namespaced: Annotated[
        bool,
        typer.Option("--namespaced", help="Run the jobs of the namespace only, with Roles instead of ClusterRoles."),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Print only what prevents the installation. Exits with 1 if anything does.")
    ] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Do not read a cluster.")] = False,
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
) -> None:
    """Print the manifests that a cluster needs: tf-dist install | kubectl apply -f -

    The command reads the cluster and omits definitions that other installations own. It changes nothing. For other
    settings, use the Helm chart from which these manifests are rendered.
    """
    from tf_dist.cli.install.manifests import IMAGE, InstallOptions, manifests
    from tf_dist.errors import InvalidJob, Problem

    problems = []
    if image is not None and not _IMAGE.fullmatch(image):
        hint = "write REGISTRY/tf-dist:TAG or REGISTRY/tf-dist@sha256:DIGEST"
        problems.append(Problem("--image", f"{image!r} is not an image", hint))
    if namespaced and not namespace:
        problems.append(Problem("--namespaced", "needs the namespace whose jobs it runs", "add --namespace NS"))
    if check and offline:
        problems.append(Problem("--check", "needs to read the cluster, which --offline forbids"))
    if problems:
        raise InvalidJob(problems)
    found: list[DefinitionDifference] = []
    foreign: frozenset[str] = frozenset()
    if not offline:
        foreign, found = _looked(kubeconfig, context, check=check)
    if check:
        for one in found:
            output.line(f"{one.what}\n    {one.so}")
        if found:
            raise typer.Exit(exit_codes.FAILED)
        output.line("nothing prevents the installation")
        return
    for one in found:
        output.warning(one.what, one.so)
    if image is None:
        output.warning(
            f"the image {IMAGE} is not in a registry: the controller starts only on nodes that have it",
            f"build it from the checkout (make images IMAGE=REGISTRY/{IMAGE} && docker push REGISTRY/{IMAGE}), "
            f"then tf-dist install --image REGISTRY/{IMAGE}",
        )
    if namespace not in ("", SYSTEM_NAMESPACE) and not namespaced:
        output.note(f"programs that run jobs without this controller need TF_DIST_SYSTEM_NAMESPACE={namespace}")
    settings = InstallOptions(
        namespace=namespace or SYSTEM_NAMESPACE, image=image or IMAGE, replicas=replicas, namespaced=namespaced
    )
    output.data("yaml", manifests(settings, foreign))


def _looked(kubeconfig: str, context: str, *, check: bool) -> tuple[frozenset[str], list[DefinitionDifference]]:
    from tf_dist.cli.install.cluster_check import check_cluster, needed_values
    from tf_dist.errors import Unavailable

    cluster = _cluster(kubeconfig, context, required=check)
    if cluster is None:
        return frozenset(), []
    with cluster:
        try:
            foreign, found = check_cluster(cluster, cluster.version())
            return foreign, found if check else [*found, *needed_values(cluster)]
        except Unavailable as error:
            hint = "try again; or --offline, if the cluster has no definitions of others (kubectl get crds)"
            raise Unavailable(str(error), hint=hint) from error


def _cluster(kubeconfig: str, context: str, *, required: bool) -> RestCluster | None:
    """The cluster that kubectl would use. If none is configured, print a note and return None."""
    from tf_dist.cluster.client.client_config import load_config
    from tf_dist.errors import Unavailable

    try:
        return load_config(kubeconfig or None, context or None).cluster()
    except Unavailable:
        if required or kubeconfig or context:
            raise
        output.note("no cluster was checked: none is configured here")
        return None
