"""An installation as files, in the order in which they are to be applied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tf_dist.cli.manifests import leases
from tf_dist.cli.manifests.definitions import definitions
from tf_dist.cli.manifests.names import Object
from tf_dist.cli.manifests.roles import for_arbiters, for_controller, for_drivers, for_flavors, for_nodes, for_people
from tf_dist.cli.manifests.settings import Settings
from tf_dist.cli.manifests.workload import namespace, workload
from tf_dist.driver import lease

Files = Mapping[str, list[Object]]

_KUSTOMIZATION: Final = "kustomization.yaml"


def files(settings: Settings) -> Files:
    """Every object that is installed, by the file it belongs in."""
    parts = {f"crds/{one['metadata']['name']}.yaml": [one] for one in definitions(settings)}
    if settings.only_definitions:
        return parts
    parts["roles.yaml"] = [*for_people(settings), *for_nodes()]
    shared = leases.objects(leases.of_arbiter(settings), lease.ARBITER)
    parts["system.yaml"] = [*namespace(settings.system_namespace), *for_arbiters(settings), *shared]
    for one in settings.drivers:
        parts[f"driver-{one}.yaml"] = _driver(one, settings)
    if flavors := for_flavors(settings):
        parts["flavors.yaml"] = flavors
    if settings.controller:
        home = namespace(settings.into) if settings.into != settings.system_namespace else []
        parts["controller.yaml"] = [*home, *for_controller(settings), *workload(settings)]
    return parts


def tree(settings: Settings) -> Files:
    """``files`` as a folder for ``kubectl apply -k``.

    Beside what is applied there is ``driver/``: an account for drivers without a controller, to be put into a
    namespace by an overlay.
    """
    applied = files(settings)
    folder = {**applied, _KUSTOMIZATION: [_kustomization(applied)]}
    if settings.only_definitions:
        return folder
    driver = _driver("default", settings)
    return {**folder, "driver/driver.yaml": driver, f"driver/{_KUSTOMIZATION}": [_kustomization(["driver.yaml"])]}


def _driver(namespace: str, settings: Settings) -> list[Object]:
    return for_drivers(namespace, volcano=settings.volcano_jobs, gang_schedulers=settings.others)


def _kustomization(resources: Iterable[str]) -> Object:
    return {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": list(resources)}
