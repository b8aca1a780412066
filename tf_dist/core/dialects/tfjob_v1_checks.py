"""What a ``kubeflow.org/v1`` TFJob must and should say beyond its shape.

The rules are those of Kubeflow's validating webhook, and some for what it lets pass and then cannot run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tf_dist.core.claims import TRAINING_OPERATOR
from tf_dist.core.dialects import elastic
from tf_dist.core.dialects.containers import quantities
from tf_dist.core.dialects.names import check_metadata, check_pod_names
from tf_dist.core.dialects.pod_template import require_container
from tf_dist.core.dialects.problems import Findings, Loc, described, suggest
from tf_dist.core.dialects.shape import TF_CONTAINER
from tf_dist.core.dialects.tfjob_v1_schema import RETIRED_KEYS, TYPES, Replicas, RunPolicyShape, Spec, TFJob
from tf_dist.core.names import MAX_WORKERS, MIN_WORKERS
from tf_dist.core.untyped import at

_SPECS: Loc = ("spec", "tfReplicaSpecs")
_RETIRED = {key: name for key in RETIRED_KEYS for name, info in Spec.model_fields.items() if info.alias == key}
MANAGERS = (TRAINING_OPERATOR, "kueue.x-k8s.io/multikueue")
_BY_FOLDED = {name.casefold(): name for name in TYPES}


def normalised(key: str) -> str:
    """The replica type as Kubeflow writes it, whatever its case: ``WORKER`` is Worker; others stay as they are."""
    return _BY_FOLDED.get(key.casefold(), key) if key.isascii() else key


def check(job: TFJob, out: Findings) -> None:
    """All rules about our own keys."""
    spec = job.spec
    most = elastic.bound(job.metadata.annotations, MAX_WORKERS) or 0
    groups = [
        (key.casefold(), max(replicas.count, most) if normalised(key) == "Worker" else replicas.count)
        for key, replicas in spec.tf_replica_specs.items()
    ]
    if check_metadata(job.metadata, out, letter_first=True):
        check_pod_names(job.metadata, groups, out)
    _check_types(spec.tf_replica_specs, out)
    _check_counts(spec.tf_replica_specs, out)
    for key, replicas in spec.tf_replica_specs.items():
        require_container(replicas.template, (*_SPECS, key, "template"), out, named=TF_CONTAINER)
    _check_retired(spec, out)
    _check_gang(spec, out)
    _check_elastic(job, out)
    if out.advice:
        _check_manager(spec, out)
        _advise_restart(spec.tf_replica_specs, out)
        _advise_leftovers(spec, out)


def _check_manager(spec: Spec, out: Findings) -> None:
    """Of a file only: a job in a cluster may name any controller, and is that one's."""
    manager = spec.run_policy.managed_by if spec.run_policy else None
    if manager is not None and manager not in MANAGERS:
        place: Loc = ("spec", "runPolicy", "managedBy")
        out.error(place, f"unknown value {described(manager)}", suggest(manager, MANAGERS))


def _check_types(specs: Mapping[str, Replicas], out: Findings) -> None:
    for key in specs:
        if normalised(key) not in TYPES:
            out.error((*_SPECS, key), "unknown replica type", suggest(key, TYPES))
    for name, times in Counter(map(normalised, specs)).items():
        if times > 1:
            written = [key for key in specs if normalised(key) == name]
            out.error((*_SPECS, written[-1]), f"{' and '.join(written)} are the same replica type", "keep one of them")


def _check_counts(specs: Mapping[str, Replicas], out: Findings) -> None:
    leaders = [key for key in specs if normalised(key) in ("Chief", "Master")]
    if len(leaders) > 1:
        out.error((*_SPECS, leaders[-1]), f"two chiefs: {' and '.join(leaders)}", "a job has one Chief or one Master")
    for key in leaders:
        if specs[key].count != 1:
            what = "two chiefs or more" if specs[key].count else "no chief to finish, so the job could never succeed"
            out.error((*_SPECS, key, "replicas"), f"{specs[key].count} replicas: {what}", "write 1, or leave it out")
    if out.partial:
        return
    worker = next((key for key in specs if normalised(key) == "Worker"), None)
    if not specs:
        out.error(_SPECS, "at least one replica type is required", f"known: {', '.join(TYPES)}")
    elif not any(replicas.count for replicas in specs.values()):
        out.error(_SPECS, "there are no replicas at all: nothing would run")
    elif not leaders and worker and specs[worker].count == 0:
        out.error(
            (*_SPECS, worker, "replicas"),
            "0 workers and no chief: nothing decides when the job has succeeded",
            "give it a worker or a Chief",
        )


def _check_retired(spec: Spec, out: Findings) -> None:
    now = spec.run_policy or RunPolicyShape()
    for key, field in _RETIRED.items():
        old, new = getattr(spec, field), getattr(now, field)
        if old is None:
            continue
        if new is not None and new != old:
            out.error(("spec", key), f"is {old} here and {new} in spec.runPolicy", "keep the one in spec.runPolicy")
        else:
            out.warn(("spec", key), "this is where v1.0 had it; it is honoured", f"move it to spec.runPolicy.{key}")


def _check_gang(spec: Spec, out: Findings) -> None:
    policy = spec.run_policy.scheduling_policy if spec.run_policy else None
    if policy is None:
        return
    place: Loc = ("spec", "runPolicy", "schedulingPolicy")
    total = sum(replicas.count for replicas in spec.tf_replica_specs.values())
    if policy.min_available is not None and policy.min_available > total and not out.partial:
        out.error(
            (*place, "minAvailable"),
            f"{policy.min_available} replicas must be there at once, but the job has {total}: it could never start",
            f"write {total} or less, or leave it out",
        )
    if policy.min_resources is not None:
        quantities({"minResources": policy.min_resources}, "minResources", place, out)
        out.warn((*place, "minResources"), "is not used: tf-dist adds up what the gang's pods request")


def _check_elastic(job: TFJob, out: Findings) -> None:
    """The annotations for fewer and more workers, and what a job that cannot take it live has to expect."""
    annotations, spec = job.metadata.annotations, job.spec
    counts = {normalised(key): replicas.count for key, replicas in spec.tf_replica_specs.items()}
    workers = counts.get("Worker")
    elastic.check_bounds(annotations, workers, "spec.tfReplicaSpecs.Worker.replicas", out)
    least, most = (elastic.bound(annotations, key) for key in (MIN_WORKERS, MAX_WORKERS))
    if workers is None or out.partial:
        return
    gang = (
        spec.run_policy.scheduling_policy.min_available
        if spec.run_policy and spec.run_policy.scheduling_policy
        else None
    )
    needed = sum(counts.values()) - workers + (least or workers)
    if least is not None and gang is not None and gang != needed:
        out.error(
            elastic.place(MIN_WORKERS),
            f"is {least}, which makes a gang of {needed} with the other replicas, but minAvailable is {gang}",
            "leave minAvailable out",
        )
    changes = (least is not None and least < workers) or (most is not None and most > workers)
    if changes and not spec.enable_dynamic_worker:
        out.warn(
            ("spec", "enableDynamicWorker"),
            "is not set, so TF_CONFIG names every worker: when the job grows, all its replicas start again",
            "write true if the program copes with workers that come and go, and save checkpoints",
        )


def _advise_restart(specs: Mapping[str, Replicas], out: Findings) -> None:
    for key, replicas in specs.items():
        written = at(replicas.template, "spec", "restartPolicy")
        policy = replicas.restart_policy or "Never"
        used = "Never" if policy == "ExitCode" else policy
        if isinstance(written, str) and written != used:
            said = f"{key}'s {'' if replicas.restart_policy else 'default '}restartPolicy {policy}"
            out.warn(
                (*_SPECS, key, "template", "spec", "restartPolicy"),
                f"{written} is overridden by {said}",
                f"write it in spec.tfReplicaSpecs.{key}.restartPolicy",
            )


def _advise_leftovers(spec: Spec, out: Findings) -> None:
    """What will keep running, or never end."""
    types = {normalised(key) for key, replicas in spec.tf_replica_specs.items() if replicas.count}
    policy = (spec.run_policy and spec.run_policy.clean_pod_policy) or spec.clean_pod_policy
    if "PS" in types and policy is None:
        out.warn(
            ("spec", "runPolicy", "cleanPodPolicy"),
            "is not set, so parameter servers keep running when the job has succeeded",
            "write Running (stop what still runs) or All (remove every pod)",
        )
    if types and not out.partial and not types & {"Chief", "Master", "Worker"}:
        out.warn(_SPECS, f"with only {' and '.join(sorted(types))} the job never succeeds", "add a Chief or a Worker")
