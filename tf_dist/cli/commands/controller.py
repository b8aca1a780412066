"""``tf-dist controller``: runs the controller of a cluster until a signal arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tf_dist.cli import options
from tf_dist.core.model.gang_scheduler import GangScheduler

if TYPE_CHECKING:
    from tf_dist.cluster.client.client_config import KubeContext
    from tf_dist.controller.manager import ManagerSettings

_Namespaces = Annotated[
    list[str] | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NS",
        callback=options.check_namespaces,
        help="Run the jobs of this namespace only.",
    ),
]
_Port = Annotated[
    int,
    typer.Option(
        "--metrics-port", min=0, max=65535, help="The port of /metrics, /healthz and /readyz (0: any free port)."
    ),
]
_Workers = Annotated[
    int, typer.Option("--workers", min=1, max=256, help="The number of jobs reconciled at the same time.")
]
_Volcano = Annotated[
    bool, typer.Option("--volcano-jobs", help="Also run Volcano Jobs. Not together with Volcano's own controller.")
]


def controller(
    namespace: _Namespaces = None,
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    metrics_port: _Port = 8080,
    log_format: Annotated[
        options.LogFormat, typer.Option("--log-format", help="json or text.")
    ] = options.LogFormat.TEXT,
    log_level: options.LogLevel = options.Level.INFO,
    workers: _Workers = 16,
    volcano_jobs: _Volcano = False,
    gang_scheduler: Annotated[
        GangScheduler, typer.Option("--gang-scheduler", help="The gang scheduler of jobs without the annotation.")
    ] = GangScheduler.BUILTIN,
    cluster_domain: options.ClusterDomain = "",
    disruption_budgets: options.DisruptionBudgets = False,
) -> None:
    """Run the controller of a cluster, which admits and reconciles all jobs.

    One of several replicas is the leader. If the leader dies, another replica becomes the leader after about 15
    seconds. After Ctrl-C or SIGTERM, another replica becomes the leader immediately. Jobs and pods continue.
    """
    from tf_dist.cluster.client.client_config import load_config
    from tf_dist.cluster.lease import system_namespace
    from tf_dist.controller.manager import ManagerSettings
    from tf_dist.controller.observability import json_logging
    from tf_dist.controller.settings import ControllerSettings

    json_logging.configure_logging(json_logging.LogFormat(log_format.value), level=log_level.number)
    # Never the cluster of ``tf-dist local up``, which has its own controller.
    place = load_config(kubeconfig or None, context or None)
    settings = ManagerSettings(
        namespaces=tuple(namespace or ()),
        metrics_port=metrics_port,
        system_namespace=system_namespace(),
        controller=ControllerSettings(
            workers=workers,
            volcano_jobs=volcano_jobs,
            gang_scheduler=gang_scheduler,
            cluster_domain=cluster_domain.strip("."),
            disruption_budgets=disruption_budgets,
        ),
    )
    _run(place, settings)


def _run(place: KubeContext, settings: ManagerSettings) -> None:
    """Run until a signal arrives."""
    import threading

    from tf_dist.cluster.lease import LEASE_REQUEST_TIMEOUT
    from tf_dist.cluster.signals import Signals
    from tf_dist.controller.manager import Manager, limit_shutdown_time, tune_garbage_collector
    from tf_dist.controller.observability.prometheus_metrics import PrometheusRecorder

    tune_garbage_collector()
    recorder = PrometheusRecorder()
    stopping = threading.Event()
    with (
        Signals() as signals,
        place.cluster(connections=2 * settings.controller.workers + 8, called=recorder.called, paced=True) as cluster,
        # A Lease renewal is repeated anyway, and must not wait for other requests.
        place.cluster(connections=4, retries=0, timeout=LEASE_REQUEST_TIMEOUT, called=recorder.called) as leases,
        Manager(cluster, settings, recorder=recorder, lease_cluster=leases),
    ):
        signals.listen(lambda _: stopping.set())
        stopping.wait()
        limit_shutdown_time(cluster, leases)
