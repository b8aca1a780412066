"""The Leases that drivers take turns in. They are installed, so that no role needs the right to create any."""

from __future__ import annotations

from collections.abc import Iterable

from tf_dist.cli.manifests.names import Object, metadata
from tf_dist.cli.manifests.settings import Settings
from tf_dist.core import names
from tf_dist.driver.arbiter import admissions_lease, arbiter_lease
from tf_dist.driver.lease import LeaseRef, admissions_name, controller_name


def of_arbiter(settings: Settings) -> tuple[LeaseRef, ...]:
    """Of the driver that decides about places for all: its own first, then the list of what it is about to admit."""
    return arbiter_lease(settings.system_namespace), admissions_lease(settings.system_namespace)


def of_controller(settings: Settings) -> tuple[LeaseRef, ...]:
    """Of the controller's replicas: the one that they stand for, then their lists, one a namespace or one for all."""
    name = controller_name(settings.namespaces)
    lists = (admissions_name(name, one) for one in settings.namespaces or (None,))
    return tuple(LeaseRef(settings.into, one) for one in (name, *lists))


def objects(refs: Iterable[LeaseRef], driver: str) -> list[Object]:
    """Leases with nothing in them, so that a second apply leaves them alone; ``driver``: what kind of driver has them.

    One that was never held can be taken at once; one that is missing may have been deleted under its holder.
    """
    labels = {names.DRIVER: driver}
    return [
        {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata(ref.name, ref.namespace, labels)}
        for ref in refs
    ]
