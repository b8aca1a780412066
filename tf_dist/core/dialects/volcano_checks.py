"""What a Volcano Job must and should say beyond its shape.

The rules are those of Volcano's validating webhook; what tf-dist does not do is an error where the job would run
differently without it, and a warning where not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tf_dist.core.dialects import elastic, snippets, volcano_plugins, volcano_policies
from tf_dist.core.dialects.names import check_label, check_metadata, check_pod_names
from tf_dist.core.dialects.pod_template import require_container
from tf_dist.core.dialects.problems import MISSING, Findings, Loc, suggest
from tf_dist.core.dialects.volcano import worker_task
from tf_dist.core.dialects.volcano_schema import MOST_TASKS, Policy, Spec, Task, VolcanoJob, task_name
from tf_dist.core.names import MAX_WORKERS, MIN_WORKERS
from tf_dist.core.policy_model import Event
from tf_dist.core.untyped import at, mapping


def check(job: VolcanoJob, out: Findings) -> None:
    """All rules about our own keys."""
    spec = job.spec
    names = [task_name(task, index) for index, task in enumerate(spec.tasks)]
    svc = volcano_plugins.plugins(spec).svc
    # The svc plugin makes a service of the job's name, and a service's name starts with a letter.
    named = check_metadata(job.metadata, out, letter_first=svc)
    labels = [check_label(name, ("spec", "tasks", index, "name"), out) for index, name in enumerate(names)]
    if named and all(labels):
        most = elastic.bound(job.metadata.annotations, MAX_WORKERS) or 0
        worker = worker_task(spec)
        counts = (max(task.count, most) if index == worker else task.count for index, task in enumerate(spec.tasks))
        check_pod_names(job.metadata, zip(names, counts, strict=True), out)
    _check_tasks(spec, names, out)
    _check_dependencies(spec.tasks, names, out)
    _check_gang(spec, out)
    _check_elastic(job, out)
    _check_volumes(spec, out)
    _check_not_done(spec, out)
    volcano_plugins.check(spec, names, out)
    volcano_policies.check(spec.policies, ("spec", "policies"), out)
    for index, task in enumerate(spec.tasks):
        volcano_policies.check(task.policies, ("spec", "tasks", index, "policies"), out)
        if out.advice:
            _advise_task(task, spec, ("spec", "tasks", index), out)


def _check_tasks(spec: Spec, names: Sequence[str], out: Findings) -> None:
    if not spec.tasks:
        out.error(("spec", "tasks"), "at least one task is required")
    elif len(spec.tasks) > MOST_TASKS:
        out.error(("spec", "tasks"), f"{len(spec.tasks)} tasks are more than {MOST_TASKS}", "make it several jobs")
    elif spec.total == 0 and not out.partial:
        out.error(("spec", "tasks"), "there are no replicas at all: nothing would run")
    for index, task in enumerate(spec.tasks):
        place: Loc = ("spec", "tasks", index)
        if names.index(names[index]) != index:
            out.error((*place, "name"), f"a second task named {names[index]!r}")
        if task.replicas is None and not out.partial:
            out.warn((*place, "replicas"), "is missing, which Volcano takes for 0", "write how many there are")
        if task.min_available is not None and task.min_available > task.count and not out.partial:
            out.error(
                (*place, "minAvailable"),
                f"{task.min_available} of {names[index]} must run at once, but there are {task.count}",
                f"write {task.count} or less",
            )
        require_container(task.template, (*place, "template"), out)
        if task.partition_policy is not None:
            out.error(
                (*place, "partitionPolicy"), "tf-dist does not divide tasks into partitions", "make tasks of them"
            )
        if task.topology_policy not in (None, "none"):
            out.warn((*place, "topologyPolicy"), "tf-dist does not place by NUMA node; this is not used")


def _check_dependencies(tasks: Sequence[Task], names: Sequence[str], out: Findings) -> None:
    known: dict[str, list[str]] = {}
    for index, task in enumerate(tasks):
        wanted = (task.depends_on and task.depends_on.name) or []
        for name in wanted:
            if name not in names:
                place = ("spec", "tasks", index, "dependsOn", "name")
                out.error(place, f"there is no task {name!r}", suggest(name, names))
        known.setdefault(names[index], [name for name in wanted if name in names])
    if circle := _circle(known):
        index = names.index(circle[0])
        out.error(("spec", "tasks", index, "dependsOn"), f"waits for itself: {' -> '.join((*circle, circle[0]))}")


def _circle(edges: Mapping[str, Sequence[str]]) -> list[str]:
    """A circle in the graph, in its order; empty if there is none. (A loop, not recursion: a document may be deep.)"""
    done: set[str] = set()
    for start in edges:
        path, branches = [start], [iter(edges[start])]
        while branches and start not in done:
            follower = next((name for name in branches[-1] if name not in done), None)
            if follower is None:
                branches.pop()
                done.add(path.pop())
            elif follower in path:
                return path[path.index(follower) :]
            else:
                path.append(follower)
                branches.append(iter(edges[follower]))
    return []


def _check_gang(spec: Spec, out: Findings) -> None:
    if out.partial:
        return
    if spec.min_available is not None and spec.min_available > spec.total:
        out.error(
            ("spec", "minAvailable"),
            f"{spec.min_available} pods must run at once, but the tasks have {spec.total}: it could never start",
            f"write {spec.total} or less, or leave it out",
        )
    if spec.min_success is not None and spec.min_success > spec.total:
        out.error(("spec", "minSuccess"), f"{spec.min_success} pods must succeed, but the tasks have {spec.total}")


def _check_elastic(job: VolcanoJob, out: Findings) -> None:
    """The annotation for more workers; for fewer a task has minAvailable."""
    index = worker_task(job.spec)
    task = None if index is None else job.spec.tasks[index]
    where = "there are none" if index is None else f"spec.tasks[{index}].replicas"
    annotations = {k: v for k, v in (job.metadata.annotations or {}).items() if k == MAX_WORKERS}
    elastic.check_bounds(annotations, task.count if task else None, where, out)
    elastic.refuse(job.metadata.annotations, MIN_WORKERS, "minAvailable in the task of the workers", out)


def _check_volumes(spec: Spec, out: Findings) -> None:
    paths: set[str] = set()
    for index, volume in enumerate(spec.volumes or ()):
        place: Loc = ("spec", "volumes", index)
        path = volume.mount_path
        if not path or ":" in path or not path.startswith("/"):
            out.error((*place, "mountPath"), f"{path!r} must be absolute and without ':'")
        if path in paths:
            out.error((*place, "mountPath"), f"{path!r} is mounted twice")
        paths.add(path)
        if volume.volume_claim is not None and volume.volume_claim_name:
            out.error(place, "has both volumeClaim and volumeClaimName", "keep volumeClaimName")
        elif volume.volume_claim is not None:
            out.error(
                (*place, "volumeClaim"),
                "tf-dist makes no claims, and without it what the job writes there would be lost",
                "make the PersistentVolumeClaim yourself and write its name as volumeClaimName",
            )
        elif not volume.volume_claim_name and not out.partial:
            out.error((*place, "volumeClaimName"), MISSING)


def _check_not_done(spec: Spec, out: Findings) -> None:
    if spec.queue == "root":
        out.error(("spec", "queue"), "jobs cannot be put into the root queue", "name one below it")
    if spec.network_topology is None:
        return
    topology = mapping(spec.network_topology)
    if topology.get("mode") not in (None, "hard", "soft"):
        out.error(("spec", "networkTopology", "mode"), f"unknown value {topology['mode']!r}", "known: hard, soft")
    if topology.get("highestTierAllowed") is not None and topology.get("highestTierName") is not None:
        out.error(("spec", "networkTopology"), "has both highestTierAllowed and highestTierName", "keep one of them")
    out.warn(("spec", "networkTopology"), "tf-dist does not know Volcano's tiers; this is not used")


def _advise_task(task: Task, spec: Spec, loc: Loc, out: Findings) -> None:
    policy = at(task.template, "spec", "restartPolicy")
    place = (*loc, "template", "spec", "restartPolicy")
    if policy is None:
        out.warn(place, "is not set; Kubernetes takes Always, and a pod that is done starts again", "write Never")
    heard = _heard(task.policies) | _heard(spec.policies)
    restarts = policy in (None, "Always")
    if restarts and Event.TASK_COMPLETED in heard:
        out.warn(place, "with Always no pod ever completes, so the policy for TaskCompleted never fires", "write Never")
    if policy in (None, "Always", "OnFailure") and Event.POD_FAILED in _heard(task.policies):
        out.warn(
            place,
            f"with {policy or 'Always'} the kubelet restarts a container in place; the PodFailed policy hardly fires",
            "write Never",
        )
    if policy == "Never" and Event.TASK_FAILED in _heard(task.policies):
        message = "TaskFailed counts restarts in place; with Never there are none, and its policy never fires"
        out.warn(place, message, "write OnFailure, or a policy for PodFailed")
    used = volcano_plugins.plugins(spec)
    snippets.advise(task.template, (*loc, "template"), out, env=used.env, svc=used.svc)


def _heard(policies: Sequence[Policy] | None) -> set[str]:
    """The events that a list of policies answers."""
    return {name for policy in policies or () for name in volcano_policies.events_of(policy)}
