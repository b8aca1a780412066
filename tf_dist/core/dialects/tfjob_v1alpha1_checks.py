"""What a ``kubeflow.org/v1alpha1`` TFJob must and should say beyond its shape.

The first rules are those of the original's ``ValidateTFJobSpec``; the others are for what it let pass and then could
not run: a chief that does not exist, two entries of one type, bounds that contradict each other.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from tf_dist.core.dialects import elastic
from tf_dist.core.dialects.names import check_label, check_metadata
from tf_dist.core.dialects.pod_template import require_container
from tf_dist.core.dialects.problems import MISSING, Findings, Loc
from tf_dist.core.dialects.shape import TF_CONTAINER
from tf_dist.core.dialects.tfjob_v1alpha1_schema import Replicas, Spec, TFJob
from tf_dist.core.names import MAX_WORKERS, MIN_WORKERS

_SPECS: Loc = ("spec", "replicaSpecs")
_RUNTIME_ID: Final = re.compile(r"[a-z0-9]{1,8}")


def check(job: TFJob, out: Findings) -> None:
    """All rules about our own keys."""
    spec = job.spec
    check_metadata(job.metadata, out, letter_first=True)
    if spec.runtime_id and not _RUNTIME_ID.fullmatch(spec.runtime_id):
        out.error(("spec", "RuntimeId"), f"{spec.runtime_id!r} becomes part of names", "one to eight of a-z and 0-9")
    if spec.scheduler_name:
        check_label(spec.scheduler_name, ("spec", "schedulerName"), out)
    if spec.tensorboard is not None:
        out.warn(("spec", "tensorboard"), "tf-dist does not start TensorBoard", "run it beside the job on its logs")
    elastic.refuse(job.metadata.annotations, MIN_WORKERS, "spec.min-instance", out)
    elastic.refuse(job.metadata.annotations, MAX_WORKERS, "spec.max-instance", out)
    for index, replicas in enumerate(spec.replica_specs):
        _check_replicas(replicas, (*_SPECS, index), out)
    _check_types(spec, out)
    if not out.partial:
        _check_chief(spec, out)
        _check_elastic(spec, out)


def _check_replicas(replicas: Replicas, loc: Loc, out: Findings) -> None:
    if replicas.kind == "MASTER" and replicas.count > 1:
        out.error((*loc, "replicas"), f"{replicas.count} masters: there can be one", "write 1, or leave it out")
    if replicas.default_server:
        return
    if replicas.template is None:
        out.error((*loc, "template"), MISSING, "only PS may leave it out: it gets a standard server")
        return
    require_container(replicas.template, (*loc, "template"), out, named=TF_CONTAINER)


def _check_types(spec: Spec, out: Findings) -> None:
    if not spec.replica_specs:
        out.error(_SPECS, "at least one entry is required")
    first: Counter[str] = Counter()
    for index, replicas in enumerate(spec.replica_specs):
        first[replicas.kind] += 1
        if first[replicas.kind] > 1 and not out.partial:
            implied = "" if replicas.tf_replica_type else " (which it is when it does not say)"
            out.error(
                (*_SPECS, index, "tfReplicaType"),
                f"a second entry of type {replicas.kind}{implied}",
                "put their replicas into one entry",
            )


def _check_chief(spec: Spec, out: Findings) -> None:
    place: Loc = ("spec", "terminationPolicy", "chief")
    chief = spec.chief
    group = next((one for one in spec.replica_specs if one.kind == chief.replica_name), None)
    implied = "" if spec.termination_policy else " (the default, as there is no terminationPolicy)"
    if group is None:
        have = ", ".join(dict.fromkeys(one.kind for one in spec.replica_specs)) or "none"
        out.error(
            (*place, "replicaName"),
            f"the chief is a {chief.replica_name}{implied}, but no entry has that type",
            f"name one of the job's types ({have}), or add a {chief.replica_name} to replicaSpecs",
        )
    elif chief.replica_index >= group.count:
        out.error(
            (*place, "replicaIndex"),
            f"the chief is {chief.replica_name} {chief.replica_index}{implied}, but there are {group.count} of it",
            f"the last index is {group.count - 1}" if group.count else "with 0 replicas the job could never end",
        )


def _check_elastic(spec: Spec, out: Findings) -> None:
    least, most = spec.elastic
    workers = next(((at, one) for at, one in enumerate(spec.replica_specs) if one.kind == "WORKER"), None)
    if not least and not most:
        return
    if least and most and least > most:
        out.error(("spec", "min-instance"), f"is {least}, more than max-instance {most}", "exchange the two")
    if workers is None:
        out.warn(("spec", "min-instance" if least else "max-instance"), "bounds the workers, but there are none")
        return
    index, group = workers
    place = (*_SPECS, index, "replicas")
    if group.count < least:
        out.error(place, f"{group.count} workers are fewer than min-instance {least}", f"write {least} or more")
    if most and group.count > most:
        out.error(place, f"{group.count} workers are more than max-instance {most}", f"write {most} or fewer")
