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
_OTHER_FOLDER: Final = "give another folder with {}"
_Texts = list[str] | None
_POD: Final = "The controller's pods"
_MONITORING: Final = "Monitoring"


def install(
    called: typer.Context,
    into: Annotated[str, typer.Option("--into", metavar="NS", help="The controller's namespace.")] = "tf-dist-system",
    system_namespace: Annotated[
        str, typer.Option("--system-namespace", metavar="NS", help="Where all drivers of the cluster meet.")
    ] = "tf-dist-system",
    image: Annotated[
        str | None, typer.Option("--image", help="The controller's image (default: tf-dist:VERSION).")
    ] = None,
    replicas: Annotated[int, typer.Option("--replicas", min=1, help="Controllers; one of them drives.")] = 2,
    namespace: Annotated[
        _Texts, typer.Option("--namespace", "-n", metavar="NS", help="Drive jobs of these namespaces only.")
    ] = None,
    drivers: Annotated[
        _Texts,
        typer.Option("--drivers", metavar="NS", help="Let programs drive jobs in this namespace without a controller."),
    ] = None,
    no_controller: Annotated[bool, typer.Option("--no-controller", help="Install no controller.")] = False,
    see_nodes: Annotated[
        bool,
        typer.Option("--see-nodes", help="Without a controller: drivers read nodes and pods, and decide by them."),
    ] = False,
    image_pull_policy: Annotated[
        options.PullPolicy | None, typer.Option("--image-pull-policy", rich_help_panel=_POD, help="As in a pod.")
    ] = None,
    image_pull_secret: Annotated[
        _Texts,
        typer.Option(
            "--image-pull-secret", metavar="NAME", rich_help_panel=_POD, help="With which the image is pulled."
        ),
    ] = None,
    requests: Annotated[
        str,
        typer.Option("--requests", rich_help_panel=_POD, help="What one asks for (default: cpu=100m,memory=256Mi)."),
    ] = "",
    limits: Annotated[
        str, typer.Option("--limits", rich_help_panel=_POD, help="What one may use (default: memory=1Gi).")
    ] = "",
    node_selector: Annotated[
        _Texts,
        typer.Option("--node-selector", metavar="KEY=VALUE", rich_help_panel=_POD, help="A label of their nodes."),
    ] = None,
    toleration: Annotated[
        _Texts,
        typer.Option(
            "--toleration",
            metavar="KEY[=VALUE][:EFFECT]",
            rich_help_panel=_POD,
            help="A taint of nodes that they tolerate, as kubectl taint writes it.",
        ),
    ] = None,
    priority_class: Annotated[
        str, typer.Option("--priority-class", metavar="NAME", rich_help_panel=_POD, help="Their priority class.")
    ] = "",
    no_pod_budget: Annotated[
        bool,
        typer.Option("--no-pod-budget", rich_help_panel=_POD, help="Let drains take all of them at once."),
    ] = False,
    network_policy: Annotated[
        bool,
        typer.Option("--network-policy", rich_help_panel=_POD, help="Let nothing reach them but scrapes of metrics."),
    ] = False,
    metrics_from: Annotated[
        _Texts,
        typer.Option("--metrics-from", metavar="NS", rich_help_panel=_POD, help="With it: from this namespace only."),
    ] = None,
    service_monitor: Annotated[
        bool,
        typer.Option(
            "--service-monitor", rich_help_panel=_MONITORING, help="With a ServiceMonitor for the Prometheus operator."
        ),
    ] = False,
    prometheus_rule: Annotated[
        bool, typer.Option("--prometheus-rule", rich_help_panel=_MONITORING, help="With alerts for it.")
    ] = False,
    grafana_dashboard: Annotated[
        bool,
        typer.Option(
            "--grafana-dashboard", rich_help_panel=_MONITORING, help="With a dashboard, as Grafana's sidecar takes it."
        ),
    ] = False,
    monitoring_label: Annotated[
        _Texts,
        typer.Option(
            "--monitoring-label",
            metavar="KEY=VALUE",
            rich_help_panel=_MONITORING,
            help="By which your Prometheus selects monitors and rules.",
        ),
    ] = None,
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
    no_crds: Annotated[bool, typer.Option("--no-crds", help="All but the definitions.")] = False,
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
    chart: Annotated[
        Path | None, typer.Option("--chart", metavar="DIR", help="Write the Helm chart; its values are these options.")
    ] = None,
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
) -> None:
    """Print what a cluster needs: tf-dist install | kubectl apply -f -

    Looks at the cluster first, and leaves out what belongs to another installation. Changes nothing itself.
    """
    from tf_dist.cli.install.install_checks import OptionReader
    from tf_dist.cli.install.install_options import CONFIG_KEY, IMAGE, RESOURCES, InstallOptions

    config_map, _, config_key = controller_config.partition("/")
    reader = OptionReader()
    settings = InstallOptions(
        into=into,
        system_namespace=system_namespace,
        image=IMAGE if image is None else image,
        image_pull_policy=image_pull_policy.value if image_pull_policy else "",
        image_pull_secrets=tuple(dict.fromkeys(image_pull_secret or ())),
        replicas=replicas,
        resources={
            "requests": {**RESOURCES["requests"], **reader.quantities("--requests", requests)},
            "limits": {**RESOURCES["limits"], **reader.quantities("--limits", limits)},
        },
        node_selector=reader.labels("--node-selector", node_selector),
        tolerations=reader.tolerations("--toleration", toleration),
        priority_class=priority_class,
        pod_disruption_budget=not no_pod_budget,
        network_policy=network_policy,
        metrics_from=tuple(dict.fromkeys(metrics_from or ())),
        namespaces=tuple(dict.fromkeys(namespace or ())),
        drivers=tuple(dict.fromkeys(drivers or ())),
        controller=not no_controller,
        see_nodes=see_nodes,
        definitions=not no_crds,
        only_definitions=crds_only,
        service_monitor=service_monitor,
        prometheus_rule=prometheus_rule,
        grafana_dashboard=grafana_dashboard,
        monitoring_labels=reader.labels("--monitoring-label", monitoring_label),
        volcano_jobs=volcano_jobs,
        gang_schedulers=tuple(gang_scheduler or ()),
        gang_scheduler=default_scheduler,
        cluster_domain=cluster_domain.strip("."),
        disruption_budgets=disruption_budgets,
        config_map=config_map,
        config_key=config_key or CONFIG_KEY,
        kubernetes=reader.release("--kube-version", kube_version),
    )
    reader.check(settings)
    if check and offline:
        reader.refuse("--check", "has to look at the cluster, and --offline forbids it")
    from_variable = settings.cluster_domain if _is_of_environment(called, "cluster_domain") else ""
    of_options = replace(settings, cluster_domain="") if from_variable else settings
    if chart is not None and (of_options != InstallOptions() or folder is not None):
        reader.refuse("--chart", "writes the chart, whose values are the other options", "leave them out: helm --set")
    reader.finish()
    if chart is not None:
        from tf_dist.cli.install.helm.chart import chart_files

        output.write_files(chart_files(), chart, _OTHER_FOLDER.format("--chart"))
        if from_variable:
            output.note(
                f"CUSTOM_CLUSTER_DOMAIN is not written into the chart: helm --set clusterDomain={from_variable}"
            )
        return
    found: list[DefinitionDifference] = []
    if not offline:
        settings, found = _looked(settings, kubeconfig, context, required=check)
    if check:
        _answer(found)
    _warn(found)
    if settings.controller and image is None and not crds_only:
        _warn_of_image()
    if folder is None:
        _print(settings)
    else:
        output.write_files(folder_files(settings), folder, _OTHER_FOLDER.format("-o"))


def _is_of_environment(called: typer.Context, parameter: str) -> bool:
    """Whether a variable has set it, rather than an option."""
    source = called.get_parameter_source(parameter)
    return source is not None and source.name == "ENVIRONMENT"


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

    build = f"make images IMAGE=REGISTRY/{IMAGE} && docker push REGISTRY/{IMAGE}"
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


def folder_files(settings: InstallOptions) -> dict[str, str]:
    """All that ``--output`` writes, by its path: what is applied, and the dashboard to be imported by hand."""
    from tf_dist.cli.install.dashboard import dashboard_json
    from tf_dist.cli.install.workload import kustomize_tree

    found = {name: manifest_text(objects) for name, objects in kustomize_tree(settings).items()}
    return found if settings.only_definitions else {**found, "grafana/tf-dist.json": dashboard_json()}
