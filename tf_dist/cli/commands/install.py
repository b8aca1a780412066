"""``tf-dist install``: what a cluster needs, as YAML."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tf_dist.cli import options, output
from tf_dist.client import exit_codes
from tf_dist.core.api.gang_scheduler import GangScheduler

if TYPE_CHECKING:
    from tf_dist.cli.install.cluster_check import DefinitionDifference
    from tf_dist.cli.install.install_options import InstallOptions, Manifest
    from tf_dist.cluster.client.rest import RestCluster

_HEADER: Final = "# Written by tf-dist install; change its options rather than this file.\n"
_Namespaces = list[str] | None


def install(
    into: Annotated[str, typer.Option("--into", metavar="NS", help="The controller's namespace.")] = "tf-dist-system",
    system_namespace: Annotated[
        str, typer.Option("--system-namespace", metavar="NS", help="Where all drivers of the cluster meet.")
    ] = "tf-dist-system",
    image: Annotated[str, typer.Option("--image", help="The controller's image (default: tf-dist:VERSION).")] = "",
    replicas: Annotated[int, typer.Option("--replicas", min=1, help="Controllers; one of them drives.")] = 2,
    namespace: Annotated[
        _Namespaces, typer.Option("--namespace", "-n", metavar="NS", help="Drive jobs of these namespaces only.")
    ] = None,
    drivers: Annotated[
        _Namespaces,
        typer.Option("--drivers", metavar="NS", help="Let programs drive jobs in this namespace without a controller."),
    ] = None,
    no_controller: Annotated[bool, typer.Option("--no-controller", help="Install no controller.")] = False,
    see_nodes: Annotated[
        bool,
        typer.Option("--see-nodes", help="Without a controller: drivers read nodes and pods, and decide by them."),
    ] = False,
    service_monitor: Annotated[
        bool, typer.Option("--service-monitor", help="With a ServiceMonitor for the Prometheus operator.")
    ] = False,
    volcano_jobs: Annotated[
        bool, typer.Option("--volcano-jobs", help="Drive Volcano Jobs, too, in a cluster without Volcano.")
    ] = False,
    gang_scheduler: Annotated[
        list[GangScheduler] | None,
        typer.Option("--gang-scheduler", help="Let jobs ask for this gang scheduler, too (may be repeated)."),
    ] = None,
    default_scheduler: Annotated[
        GangScheduler, typer.Option("--default-scheduler", help="That of jobs which name none.")
    ] = GangScheduler.BUILTIN,
    cluster_domain: options.ClusterDomain = "",
    disruption_budgets: options.DisruptionBudgets = False,
    controller_config: Annotated[
        str,
        typer.Option(
            "--controller-config",
            metavar="NAME[/KEY]",
            help="A ConfigMap with accelerators for TFJobs v1alpha1, as tf-job-operator-config.",
        ),
    ] = "",
    crds_only: Annotated[bool, typer.Option("--crds-only", help="Only the definitions.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only say what stands in the way; 1 if something does.")
    ] = False,
    kube_version: Annotated[
        str,
        typer.Option("--kube-version", metavar="1.N", help="For a cluster of this release (default: it is asked)."),
    ] = "",
    offline: Annotated[bool, typer.Option("--offline", help="Do not look at a cluster.")] = False,
    folder: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Write a folder for kubectl apply -k.")
    ] = None,
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
) -> None:
    """Print what a cluster needs: tf-dist install | kubectl apply -f -

    Looks at the cluster first, and leaves out what belongs to another installation. Changes nothing itself.
    """
    from tf_dist.cli.install.install_options import CONFIG_KEY, IMAGE, InstallOptions

    config_map, _, config_key = controller_config.partition("/")
    settings = InstallOptions(
        into=into,
        system_namespace=system_namespace,
        image=image or IMAGE,
        replicas=replicas,
        namespaces=tuple(dict.fromkeys(namespace or ())),
        drivers=tuple(dict.fromkeys(drivers or ())),
        controller=not no_controller,
        see_nodes=see_nodes,
        only_definitions=crds_only,
        service_monitor=service_monitor,
        volcano_jobs=volcano_jobs,
        gang_schedulers=tuple(gang_scheduler or ()),
        gang_scheduler=default_scheduler,
        cluster_domain=cluster_domain.strip("."),
        disruption_budgets=disruption_budgets,
        config_map=config_map,
        config_key=config_key or CONFIG_KEY,
        kubernetes=_release(kube_version),
    )
    _require_sense(settings, check=check, offline=offline)
    found: list[DefinitionDifference] = []
    if not offline:
        settings, found = _looked(settings, kubeconfig, context, required=check)
    if check:
        _answer(found)
    _warn(found)
    if settings.controller and not image and not crds_only:
        _warn_of_image()
    if folder is None:
        _print(settings)
    else:
        _write(settings, folder)


def _release(text: str) -> tuple[int, int]:
    import re

    from tf_dist.errors import InvalidJob, Problem

    found = re.fullmatch(r"v?([0-9]{1,3})\.([0-9]{1,3})(\..*)?", text)
    if text and found is None:
        raise InvalidJob([Problem("--kube-version", f"{text!r} is no release of Kubernetes", "write 1.27")])
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _require_sense(settings: InstallOptions, *, check: bool, offline: bool) -> None:
    from tf_dist.core.dialects.common_schema import is_label
    from tf_dist.errors import InvalidJob, Problem

    given = [("--into", settings.into), ("--system-namespace", settings.system_namespace)]
    given += [("--namespace", one) for one in settings.namespaces] + [("--drivers", one) for one in settings.drivers]
    wrong = [Problem(option, f"{name!r} is no namespace") for option, name in given if not is_label(name)]
    if settings.namespaces and not settings.controller:
        wrong.append(Problem("--namespace", "says what the controller drives, and --no-controller leaves it out"))
    if settings.see_nodes and settings.controller:
        hint = "leave one of them out, or add --no-controller"
        wrong.append(Problem("--see-nodes", "is for drivers without a controller, which decides for all itself", hint))
    if settings.only_definitions and settings.drivers:
        wrong.append(Problem("--crds-only", "leaves out what --drivers asks for"))
    if settings.config_map and not settings.controller:
        wrong.append(Problem("--controller-config", "configures the controller, and --no-controller leaves it out"))
    if settings.disruption_budgets and not settings.controller:
        wrong.append(Problem("--disruption-budgets", "is for the controller, and --no-controller leaves it out"))
    if check and offline:
        wrong.append(Problem("--check", "has to look at the cluster, and --offline forbids it"))
    if wrong:
        raise InvalidJob(wrong)


def _looked(
    settings: InstallOptions, kubeconfig: str, context: str, *, required: bool
) -> tuple[InstallOptions, list[DefinitionDifference]]:
    from tf_dist.cli.install.cluster_check import check_cluster, with_needed_rights
    from tf_dist.errors import Unavailable

    cluster = _cluster(kubeconfig, context, required=required)
    if cluster is None:
        return settings, []
    with cluster:
        try:
            release = cluster.version() if settings.kubernetes == (0, 0) else settings.kubernetes
            settings, found = check_cluster(cluster, replace(settings, kubernetes=release))
            if not settings.only_definitions:
                settings, kept = with_needed_rights(cluster, settings)
                for option in kept:
                    output.note(f"as with {option}: without it the drivers would lose rights that running jobs need")
            return settings, found
        except Unavailable as error:
            hint = "try again; or --offline, if the cluster has no definitions of others (kubectl get crds)"
            raise Unavailable(str(error), hint=hint) from error


def _cluster(kubeconfig: str, context: str, *, required: bool) -> RestCluster | None:
    """The cluster that kubectl would apply to; None, after a word about it, where there is none."""
    from tf_dist.cluster.client.client_config import load_config
    from tf_dist.errors import Unavailable

    try:
        return load_config(kubeconfig or None, context or None).cluster()
    except Unavailable:
        if required or kubeconfig or context:
            raise
        output.note("no cluster was looked at: none is configured here")
        return None


def _answer(found: list[DefinitionDifference]) -> None:
    for one in found:
        output.line(f"{one.what}\n    {one.so}")
    if found:
        raise typer.Exit(exit_codes.FAILED)
    output.line("nothing stands in the way")
    raise typer.Exit


def _warn(found: list[DefinitionDifference]) -> None:
    for one in found:
        output.warning(one.what, one.so)


def _warn_of_image() -> None:
    from tf_dist.cli.install.install_options import IMAGE

    build = f"docker build -f deploy/Dockerfile -t REGISTRY/{IMAGE} . && docker push REGISTRY/{IMAGE}"
    output.warning(
        f"the image {IMAGE} is in no registry: the controller starts only on nodes that have it",
        f"build it from the checkout ({build}), then tf-dist install --image REGISTRY/{IMAGE}",
    )


def _print(settings: InstallOptions) -> None:
    from tf_dist.cli.install.workload import manifest_files

    output.data("yaml", [one for part in manifest_files(settings).values() for one in part])


def manifest_text(objects: list[Manifest]) -> str:
    """A file of these objects."""
    from tf_dist.client.yaml_files import to_yaml

    return _HEADER + to_yaml(objects if len(objects) > 1 else objects[0])


def _write(settings: InstallOptions, folder: Path) -> None:
    from tf_dist.cli.install.workload import kustomize_tree
    from tf_dist.errors import TFDistError

    for name, objects in kustomize_tree(settings).items():
        place = folder / name
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(manifest_text(objects), encoding="utf-8")
        except OSError as error:
            raise TFDistError(f"cannot write {place}: {error.strerror}", hint="give another folder with -o") from error
        output.line(str(place))
