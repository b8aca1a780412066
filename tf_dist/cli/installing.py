"""Looking at a cluster before something is installed into it: what is there already, and whose it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tf_dist.cli.manifests.definitions import TFJOBS, tfjobs
from tf_dist.cli.manifests.foreign import Difference, differences
from tf_dist.cli.manifests.settings import Budgets, Settings
from tf_dist.client.ownership import PART_OF, TF_DIST, VOLCANO_JOBS, definition, is_ours
from tf_dist.cluster.api import Cluster, Object, Resource
from tf_dist.errors import Forbidden, NotFound, Rejected

_BUDGETS: Final = Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
_TAKE_OVER: Final = "kubectl label crd {} {}={} --overwrite"


def look(cluster: Cluster, settings: Settings) -> tuple[Settings, list[Difference]]:
    """The settings that fit the cluster, and what to tell about it. Nothing in the cluster is changed.

    Rejected when what is asked for would do harm: Volcano's jobs under two controllers.
    """
    if settings.volcano_jobs:
        _refuse_volcano(cluster)
    there = definition(cluster, TFJOBS)
    found: list[Difference] = []
    if there is not None and not is_ours(there):
        found = list(_told(there))
        settings = replace(settings, left_out=settings.left_out | {TFJOBS})
    return replace(settings, budgets=_budgets(cluster, settings.into)), found


def _budgets(cluster: Cluster, namespace: str) -> Budgets:
    try:
        cluster.list(_BUDGETS, namespace, limit=1)
    except NotFound:
        return Budgets.V1BETA1
    except Forbidden:
        return Budgets.V1
    return Budgets.V1


def _told(there: Object) -> Iterator[Difference]:
    yield Difference(
        f"the cluster has a definition {TFJOBS} that is not tf-dist's; it is left as it is",
        "tf-dist works with it. To have tf-dist's instead, once nothing else needs it: "
        + _TAKE_OVER.format(TFJOBS, PART_OF, TF_DIST),
    )
    yield from differences(there, tfjobs())
    yield Difference(
        "another operator may be running, and two operators on one job harm it",
        "look for it: kubectl get deployments -A | grep -E 'training-operator|tf-job-operator'; "
        "scale it to 0, or let it drive other namespaces than tf-dist (--namespace)",
    )


def _refuse_volcano(cluster: Cluster) -> None:
    there = definition(cluster, VOLCANO_JOBS)
    if there is None or is_ours(there):
        return
    raise Rejected(
        f"the cluster has Volcano's definition {VOLCANO_JOBS}: its controller and tf-dist's would drive the same jobs",
        hint="leave out --volcano-jobs; or, if Volcano is gone for good: "
        + _TAKE_OVER.format(VOLCANO_JOBS, PART_OF, TF_DIST),
    )
