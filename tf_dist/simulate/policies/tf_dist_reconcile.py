"""tf-dist as a controller runs it: ``Admitter`` and ``reconcile`` on documents, on the virtual clock.

The API server and the kubelet are omitted: writes succeed immediately, pods run immediately on their nodes, and
deleted pods are gone immediately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf
from typing import Any, Final

from tf_dist.core import dialects
from tf_dist.core.gang.admission import AdmissionChanges, Admitter
from tf_dist.core.gang.types import AdmissionConfig, AdmissionPolicy, AdmissionRequest, PriorityClass
from tf_dist.core.model import names
from tf_dist.core.model.assignment import Verdict, Wait
from tf_dist.core.model.context import Action, Create, Delete, Observed, Update, WriteStatus
from tf_dist.core.model.pods import PodPhase, PodView, pod_view
from tf_dist.core.model.status import Status
from tf_dist.core.model.timestamps import format_time
from tf_dist.core.reconciler.reconcile import reconcile
from tf_dist.simulate.engine import JobRun, World
from tf_dist.simulate.scenario import Cluster, Layout, Scenario, SimJob

GPU: Final = "nvidia.com/gpu"
CONTAINER: Final = "tensorflow"
# The number of pods of a node is not limited: only cores and GPUs are counted.
_PODS: Final = "100000"

Body = dict[str, Any]


def job_document(job: SimJob, uid: str, created_at: float) -> Body:
    """The TFJob of a simulated job. The sizes of an elastic job are annotations, as users write them."""
    annotations = {names.EXPECTED_DURATION: f"{job.estimate:f}s"} if job.estimate else {}
    if job.elastic:
        annotations |= {names.MIN_WORKERS: str(job.least), names.MAX_WORKERS: str(job.most)}
    servers = {"PS": _replicas(job.ps, {"cpu": str(job.ps_cpu)})} if job.ps else {}
    workers = _replicas(job.workers, {"cpu": str(job.cpu)} | ({GPU: str(job.gpus)} if job.gpus else {}))
    scheduling = {"priorityClass": priority_class(job.priority)} | ({"queue": job.queue} if job.queue else {})
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {
            "name": job.name,
            "namespace": "default",
            "uid": uid,
            "creationTimestamp": format_time(created_at),
            "annotations": {**annotations, **job.annotations},
        },
        "spec": {
            "runPolicy": {"cleanPodPolicy": "Running", "schedulingPolicy": scheduling},
            "tfReplicaSpecs": {**servers, "Worker": workers},
        },
    }


def priority_class(priority: int) -> str:
    """The name of the priority class of a priority."""
    return f"priority-{priority}"


def _replicas(count: int, requests: dict[str, str]) -> Body:
    container = {"name": CONTAINER, "image": "simulated", "resources": {"requests": requests, "limits": requests}}
    return {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": {"containers": [container]}}}


def node_document(name: str, cluster: Cluster) -> Body:
    """An empty node."""
    gpus = {GPU: str(cluster.gpus)} if cluster.gpus else {}
    return {
        "metadata": {"name": name, "labels": {}},
        "status": {"allocatable": {"cpu": str(cluster.cpu), "pods": _PODS, **gpus}},
    }


def running_pod(body: Body, uid: str, now: float) -> Body:
    """The requested pod, running on its assigned node. Creation and start take no time."""
    metadata = {**body["metadata"], "uid": uid, "creationTimestamp": format_time(now)}
    running = {"startedAt": format_time(now)}
    container = {"name": CONTAINER, "state": {"running": running}, "restartCount": 0}
    status = {
        "phase": "Running",
        "startTime": format_time(now),
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [container],
    }
    return {**body, "metadata": metadata, "spec": {**body["spec"], "nodeName": _node(body)}, "status": status}


def _node(body: Body) -> str:
    """The assigned node of a pod (``podbuilder.replica_pod``); KeyError if the pod has no required affinity."""
    required = body["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    node: str = required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
    return node


def succeeded_pod(pod: Body, now: float) -> Body:
    """The pod after its process has succeeded."""
    terminated = {"exitCode": 0, "startedAt": pod["status"]["startTime"], "finishedAt": format_time(now)}
    container = {"name": CONTAINER, "state": {"terminated": terminated}, "restartCount": 0}
    return {**pod, "status": {**pod["status"], "phase": "Succeeded", "containerStatuses": [container]}}


# The time in documents when the simulation starts. Documents cannot store times before 1970.
_START: Final = 1_800_000_000.0
_TICK: Final = 0.01
_ROUNDS: Final = 100
_WORKER, _PS = "worker", "ps"


class _Driven:
    """A job and its objects in the cluster: its stored status, its pods and its other objects."""

    def __init__(self, run: JobRun, body: Body, created_at: float, admitter: Admitter) -> None:
        self.run = run
        self.job = dialects.read(body)
        self.created_at = created_at
        self.wake_at = -inf
        self.memory = Status()
        self._stored: Any = {}
        self._remembered: Status | None = None
        self._written: float | None = None
        self._pods: dict[str, Body] = {}
        self._objects: dict[tuple[str, str], Body] = {}
        self._admitter = admitter
        self._made = 0

    @property
    def views(self) -> list[PodView]:
        """The pods of the job."""
        found = (pod_view(pod, CONTAINER) for pod in self._pods.values())
        return [view for view in found if view is not None]

    def settle(self, now: float, verdict: Verdict | None = None) -> None:
        """Reconcile until nothing is left to do at this moment."""
        for _ in range(_ROUNDS):
            views, objects = tuple(self.views), self._objects
            seen = Observed(
                now=now,
                stored_status=self._stored,
                pods=views,
                objects=objects,
                verdict=verdict,
                last_status=self._remembered,
                last_written=self._written,
            )
            plan = reconcile(self.job, seen)
            self.wake_at = inf if plan.wake_at is None else plan.wake_at
            self.memory = self._remembered = plan.status
            for action in plan.actions:
                self._do(action, now)
            if not any(isinstance(action, WriteStatus | Create | Delete | Update) for action in plan.actions):
                return
            verdict = None  # the first pass has written it
        raise AssertionError(f"{self.job.key} does not settle: {plan}")

    def _do(self, action: Action, now: float) -> None:
        match action:
            case WriteStatus():
                self._stored, self._written = action.status, now
            case Create() if action.body["kind"] == "Pod":
                self._made += 1
                self._put_pod(running_pod(action.body, f"{self.job.uid}-{self._made}", now))
            case Create():
                self._objects[action.body["kind"], action.body["metadata"]["name"]] = action.body
            case Update():
                body = self._objects[action.kind, action.name]
                data = {**body["data"], **action.patch["data"]}
                self._objects[action.kind, action.name] = {
                    **body,
                    "data": {key: value for key, value in data.items() if value is not None},
                }
            case Delete() if action.kind == "Pod":
                self._admitter.update(AdmissionChanges(pods={self._pods.pop(action.name)["metadata"]["uid"]: None}))
            case Delete():
                del self._objects[action.kind, action.name]

    def _put_pod(self, pod: Body) -> None:
        self._admitter.update(AdmissionChanges(pods={pod["metadata"]["uid"]: pod}))
        self._pods[pod["metadata"]["name"]] = pod

    def succeed(self, now: float) -> None:
        """Let the workers succeed, because the work of the job is done."""
        for view in self.views:
            if view.replica.type == _WORKER:
                self._put_pod(succeeded_pod(self._pods[view.name], now))
        self.settle(now)

    def placement(self) -> dict[str, Counter[str]]:
        """The number of running pods on each node, by replica type."""
        found: dict[str, Counter[str]] = {_WORKER: Counter(), _PS: Counter()}
        for view in self.views:
            if view.phase is PodPhase.RUNNING:
                found[view.replica.type][view.node] += 1
        return found


class TfDistReconcile:
    """tf-dist with every job as a document: its status, its pods and its verdicts determine what happens to it."""

    def __init__(self, scenario: Scenario, policy: AdmissionPolicy | None = None) -> None:
        self._admitter = Admitter(policy or AdmissionPolicy(restart_cost=scenario.speed.restart))
        priorities = {priority_class(job.priority): PriorityClass(job.priority) for job in scenario.jobs}
        self._numbers = {f"node-{number:05}": number for number in range(scenario.cluster.nodes)}
        nodes = {name: node_document(name, scenario.cluster) for name in self._numbers}
        config = AdmissionConfig(queues=scenario.queues, priorities=priorities)
        self._admitter.update(AdmissionChanges(nodes=nodes, config=config))
        self._driven: dict[str, _Driven] = {}
        self._gone: list[str] = []

    def arrived(self, run: JobRun, world: World) -> None:
        """A job is submitted."""
        uid, created_at = str(run.number), _START + run.job.submit
        driven = _Driven(run, job_document(run.job, uid, created_at), created_at, self._admitter)
        self._driven[uid] = driven
        driven.settle(_START + world.now)

    def ended(self, run: JobRun, world: World) -> None:
        """End the processes of the job, and reconcile until its pods are gone."""
        driven = self._driven.pop(str(run.number))
        self._gone.append(driven.job.uid)
        driven.succeed(_START + world.now)
        if not driven.memory.finished or any(map(sum, (nodes.values() for nodes in driven.placement().values()))):
            raise AssertionError(f"{driven.job.key} is done, but {driven.memory.phase} with pods: {driven.views}")

    def act(self, world: World) -> float | None:
        """Decide and reconcile until nothing more happens at this moment."""
        now = _START + world.now
        for _ in range(_ROUNDS):
            verdicts = self._decide(now)
            woken = [uid for uid, driven in self._driven.items() if driven.wake_at <= now]
            asked = [self._driven[uid] for uid in sorted({*verdicts, *woken})]
            for driven in asked:
                driven.settle(now, verdicts.get(driven.job.uid))
            self._follow(asked, world)
            if not woken and all(isinstance(verdict, Wait) for verdict in verdicts.values()):
                wake = min((driven.wake_at for driven in self._driven.values()), default=inf)
                wake = min(wake, self._admitter.wake_at(now)) - _START
                return None if wake == inf else max(wake, world.now + _TICK)
        return world.now + _TICK

    def _decide(self, now: float) -> dict[str, Verdict]:
        jobs = {uid: AdmissionRequest(one.job, one.memory, one.created_at) for uid, one in self._driven.items()}
        self._admitter.update(AdmissionChanges(jobs=dict.fromkeys(self._gone) | jobs))
        self._gone.clear()
        return dict(self._admitter.cycle(now).verdicts)

    def _follow(self, asked: Iterable[_Driven], world: World) -> None:
        """Assign the nodes of the pods to the simulated jobs. Jobs that free capacity come first."""
        moves = []
        for driven in asked:
            placement = driven.placement()
            layout = Layout(self._numbered(placement[_WORKER]), self._numbered(placement[_PS]))
            if layout != (driven.run.layout or Layout()):
                moves.append((layout.size - driven.run.size, driven.run.number, layout, driven.run))
        for _, _, layout, run in sorted(moves, key=lambda move: move[:2]):
            if not layout.workers:
                world.take(run)
            elif run.layout is None:
                world.resume(run, layout)
            else:
                world.resize(run, layout)

    def _numbered(self, nodes: Counter[str]) -> dict[int, int]:
        return {self._numbers[node]: count for node, count in nodes.items()}
