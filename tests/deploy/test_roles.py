"""The shipped roles on a real API server: they suffice for the whole life of a job, and grant nothing more."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from tests.cluster.support import exists, names
from tests.controller.harness import container, tfjob
from tests.deploy.conftest import SYSTEM, is_served
from tests.deploy.kubelet import Kubelet
from tests.deploy.manifests import template
from tests.deploy.roles import (
    ADMITTING,
    CONTROLLER,
    DRIVER,
    LEADING_NAMESPACE,
    QUEUES,
    VOLCANO_QUEUES,
    Account,
    Kubectl,
    Life,
    granted,
    short,
    table,
)
from tests.waiting import until
from tf_dist.cluster.api import (
    CONFIG_MAPS,
    EVENTS,
    LEASES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    TFJOBS,
    TFJOBS_V1ALPHA1,
    VOLCANO_JOBS,
    Object,
)
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.cluster.lease import LeaseRef, leader_lease
from tf_dist.controller.controller import Controller
from tf_dist.controller.leader_election import LeaderElector, LeaseLeadership
from tf_dist.controller.settings import ControllerSettings
from tf_dist.core.model.status_codec import MEMORY_CONDITION, stored_status
from tf_dist.errors import Forbidden

pytestmark = pytest.mark.cluster


JOBS = "kubeflow.org"


ELECTION = {("coordination.k8s.io", "leases/tf-dist-controller", "update")}


def test_controller_role_grants_exactly_expected_rights(kubectl: Kubectl, namespace: str) -> None:
    assert granted(kubectl, "tf-dist-controller", SYSTEM, namespace) == CONTROLLER
    assert granted(kubectl, "tf-dist-controller", SYSTEM, SYSTEM) == CONTROLLER | ELECTION
    assert granted(kubectl, "tf-dist-controller", SYSTEM, "kube-system") == CONTROLLER


def test_any_account_can_read_only_leader_lease_of_cluster(
    admin: RestCluster, as_account: Account, namespace: str
) -> None:
    stranger, ref = as_account("default", namespace), LeaseRef(SYSTEM, "tf-dist-controller")
    assert stranger.get(LEASES, *ref)["metadata"]["name"] == ref.name
    one = f"metadata.name={ref.name}"
    found, since, _ = stranger.list(LEASES, SYSTEM, fields=one)
    assert [lease["metadata"]["name"] for lease in found] == [ref.name]
    with stranger.watch(LEASES, SYSTEM, fields=one, since=since) as stream:
        elector = LeaderElector(as_account("tf-dist-controller", SYSTEM), ref)
        elector.step()
        elector.stop()
        assert next(iter(stream)).object["spec"]["holderIdentity"] == elector.identity
    refused: list[Callable[[], object]] = [
        lambda: stranger.get(LEASES, SYSTEM, "another"),
        lambda: stranger.list(LEASES, SYSTEM),
        lambda: next(iter(stranger.watch(LEASES, SYSTEM))),
        lambda: next(iter(stranger.watch(LEASES, SYSTEM, fields="metadata.name=another"))),
        lambda: stranger.replace(LEASES, *ref, admin.get(LEASES, *ref)),
        lambda: stranger.delete(LEASES, *ref),
    ]
    for call in refused:
        with pytest.raises(Forbidden):
            call()


def test_driver_role_grants_expected_rights_and_only_queues_elsewhere(kubectl: Kubectl, drivers: str) -> None:
    assert granted(kubectl, "tf-dist-driver", drivers, drivers) == DRIVER | QUEUES
    assert granted(kubectl, "tf-dist-driver", drivers, "default") == QUEUES


def test_namespaced_controller_has_rights_only_in_its_namespace(
    kubectl: Kubectl, install: Callable[..., Any], namespace: str
) -> None:
    """The account is in another namespace, so that the controller of the cluster keeps its rights."""
    printed = install("--namespace", namespace, "--namespaced")
    rights = [
        one for one in yaml.safe_load_all(printed.stdout) if one["kind"] in ("ServiceAccount", "Role", "RoleBinding")
    ]
    assert {one["metadata"]["namespace"] for one in rights} == {namespace}
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(rights))
    assert granted(kubectl, "tf-dist-controller", namespace, namespace) == (CONTROLLER - ADMITTING) | LEADING_NAMESPACE
    assert granted(kubectl, "tf-dist-controller", namespace, "default") == set()


def test_edit_and_view_include_jobs(kubectl: Kubectl, namespace: str) -> None:
    kubectl("create", "rolebinding", "edits", "--clusterrole=edit", "--user=ed", "-n", namespace)
    kubectl("create", "rolebinding", "views", "--clusterrole=view", "--user=vi", "-n", namespace)

    def may(user: str, verb: str, resource: str) -> bool:
        plural, _, subresource = resource.partition("/")
        asked = {"namespace": namespace, "verb": verb, "group": JOBS, "resource": plural, "subresource": subresource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        answer = json.loads(
            kubectl("create", "--validate=false", "-f", "-", "-o", "json", f"--as={user}", stdin=review)
        )
        return bool(answer["status"]["allowed"])

    # The controller manager aggregates the rules into edit and view asynchronously.
    until(lambda: may("ed", "create", "tfjobs") and may("vi", "watch", "tfjobs"), 60)
    assert may("ed", "patch", "tfjobs/scale")
    assert not may("ed", "update", "tfjobs/status")
    assert not may("vi", "delete", "tfjobs")


# The whole life of a job, with only the role


def live(admin: RestCluster, controller: Controller, kubelet: Kubelet, submit: RestCluster, namespace: str) -> None:
    """A worker is killed and restarts. The job is suspended, resumes, succeeds, and is deleted after its TTL."""
    document = short(tfjob(cleanPodPolicy="All", ttlSecondsAfterFinished=0))
    life = Life(admin, controller, kubelet, TFJOBS, submit.create(TFJOBS, namespace, document))
    life.until(lambda: life.memory().get("phase") == "Running")
    assert len(names(admin, SERVICES, namespace)) == 3
    life.until(lambda: bool(life.memory().get("restarts")), worker_1=137)
    life.until(lambda: life.memory().get("phase") == "Running")
    submit.patch(TFJOBS, namespace, "mnist", {"spec": {"runPolicy": {"suspend": True}}})
    life.until(lambda: life.memory().get("phase") == "Aborted" and not names(admin, PODS, namespace))
    submit.patch(TFJOBS, namespace, "mnist", {"spec": {"runPolicy": {"suspend": False}}})
    life.until(lambda: life.memory().get("phase") == "Running")
    life.until(life.gone, worker_0=0, worker_1=0)
    assert admin.list(EVENTS, namespace).items, "the controller has emitted no Event"


def test_controller_role_suffices_for_whole_life_of_job(
    admin: RestCluster, as_account: Account, room: Kubelet, namespace: str
) -> None:
    account = as_account("tf-dist-controller", SYSTEM)
    live(admin, Controller(account, settings=ControllerSettings(volcano_jobs=False)), room, admin, namespace)
    # The manifests contain the Lease, because a role cannot restrict the names of objects that may be created.
    ref = leader_lease(TFJOBS, None)
    installed = admin.get(LEASES, *ref)
    admin.delete(LEASES, *ref)
    try:
        elector = LeaderElector(account, ref)
        elector.step()
        assert "may not be created" in str(elector.problem)
    finally:
        admin.create(LEASES, ref.namespace, {"metadata": {"name": ref.name, "labels": installed["metadata"]["labels"]}})
    with pytest.raises(Forbidden):
        account.list(SECRETS, namespace)


def test_driver_role_suffices_for_whole_life_of_job(
    admin: RestCluster, as_account: Account, room: Kubelet, drivers: str
) -> None:
    account = as_account("tf-dist-driver", drivers)
    leadership = LeaseLeadership(account, (TFJOBS,), drivers)
    settings = ControllerSettings(namespace=drivers, volcano_jobs=False)
    controller = Controller(account, settings=settings, leadership=leadership)
    leadership.start()
    try:
        until(leadership.kinds, 60)
        live(admin, controller, room, account, drivers)
        assert leadership.problem() is None
    finally:
        leadership.stop()
    assert not exists(admin, LEASES, *leader_lease(TFJOBS, drivers))
    with pytest.raises(Forbidden):
        account.list(NODES)
    with pytest.raises(Forbidden):
        account.list(SECRETS, drivers)


def test_leader_of_namespace_yields_to_controller_of_cluster(
    admin: RestCluster, as_account: Account, drivers: str
) -> None:
    own = leader_lease(TFJOBS, drivers)
    program = LeaseLeadership(as_account("tf-dist-driver", drivers), (TFJOBS,), drivers)
    controller = LeaseLeadership(as_account("tf-dist-controller", SYSTEM), (TFJOBS,), None)
    program.start()
    try:
        until(program.kinds, 60)
        controller.start()
        # Only one leads at any time. The controller leads when the Lease of the namespace is deleted.
        until(controller.kinds, 60)
        assert not program.kinds()
        assert not exists(admin, LEASES, *own)
        assert controller.problem() is None
        controller.stop()
        until(program.kinds, 60)
        assert admin.get(LEASES, *own)["spec"]["holderIdentity"] == program.identity
    finally:
        controller.stop()
        program.stop()
    assert not exists(admin, LEASES, *own)


@pytest.fixture
def volcano(
    admin: RestCluster, kubectl: Kubectl, install: Callable[..., Any], installed: str, namespace: str
) -> Iterator[str]:
    """A namespace in which ``tf-dist-driver`` may also run Volcano Jobs."""
    if is_served(admin, VOLCANO_JOBS):
        pytest.skip("this cluster has Volcano")
    kubectl("apply", "-f", "-", stdin=template("volcanoJobs=true", f"drivers={{{namespace}}}"))
    try:
        until(lambda: is_served(admin, VOLCANO_JOBS), 60)
        yield namespace
    finally:
        kubectl("delete", "crd", "jobs.batch.volcano.sh", "commands.bus.volcano.sh")
        kubectl("delete", "clusterrolebinding", f"tf-dist-driver-{namespace}")
        kubectl("apply", "-f", "-", stdin=install().stdout)


def test_driver_role_with_volcano_jobs_suffices_for_plugins(
    admin: RestCluster, kubectl: Kubectl, as_account: Account, room: Kubelet, volcano: str
) -> None:
    more = """
        jobs.batch.volcano.sh: get list watch create patch delete
        jobs/status.batch.volcano.sh: update
        jobs/finalizers.batch.volcano.sh: update
        configmaps: get list watch create patch delete
        networkpolicies.networking.k8s.io: get list watch create delete
        commands.bus.volcano.sh: get list watch delete
    """
    queues = QUEUES | VOLCANO_QUEUES
    assert granted(kubectl, "tf-dist-driver", volcano, volcano) == DRIVER | queues | table(more)
    account = as_account("tf-dist-driver", volcano)
    task = {"name": "worker", "replicas": 2, "template": {"spec": {"containers": [container()]}}}
    spec = {
        "minAvailable": 2,
        "plugins": {"svc": [], "env": [], "ssh": []},
        "tasks": [task],
        "ttlSecondsAfterFinished": 0,
    }
    stored = account.create(VOLCANO_JOBS, volcano, {"metadata": {"name": "vc"}, "spec": spec})
    controller = Controller(account, settings=ControllerSettings(namespace=volcano, volcano_jobs=True))
    life = Life(admin, controller, room, VOLCANO_JOBS, stored)
    life.until(lambda: life.memory().get("phase") == "Running")
    assert names(admin, NETWORK_POLICIES, volcano) == ["vc"]
    assert "vc-ssh" in names(admin, SECRETS, volcano)
    assert "vc-svc" in names(admin, CONFIG_MAPS, volcano)
    tasks = [{**task, "replicas": 3}]
    account.patch(VOLCANO_JOBS, volcano, "vc", {"spec": {"tasks": tasks}})
    life.until(lambda: len(names(admin, PODS, volcano)) == 3)
    life.until(life.gone, worker_0=0, worker_1=0, worker_2=0)


@pytest.fixture
def kubeflows(admin: RestCluster, namespace: str) -> Iterator[None]:
    """Kubeflow's definition of TFJob, which has only v1, and a status that drops unknown fields."""
    name = "tfjobs.kubeflow.org"
    ours = admin.get(CRDS, None, name)["spec"]["versions"]
    kept = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    text = {"type": "string"}
    condition = dict.fromkeys(("type", "status", "reason", "message", "lastUpdateTime", "lastTransitionTime"), text)
    counts = {key: {"type": "integer"} for key in ("active", "succeeded", "failed")}
    replicas = {"type": "object", "properties": {**counts, "selector": text}}
    status = {
        "conditions": {"type": "array", "items": {"type": "object", "properties": condition}},
        "replicaStatuses": {"type": "object", "additionalProperties": replicas},
        "startTime": text,
        "completionTime": text,
    }
    schema = {"type": "object", "properties": {"spec": kept, "status": {"type": "object", "properties": status}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    theirs = {**version, "subresources": {"status": {}}}
    admin.patch(CRDS, None, name, {"spec": {"versions": [theirs]}})
    until(lambda: not is_served(admin, TFJOBS_V1ALPHA1), 60)
    try:
        yield
    finally:
        admin.patch(CRDS, None, name, {"spec": {"versions": ours}})
        until(lambda: is_served(admin, TFJOBS_V1ALPHA1), 60)


def test_controller_role_suffices_when_kubeflow_definition_drops_memory(
    admin: RestCluster, as_account: Account, room: Kubelet, kubeflows: None, namespace: str
) -> None:
    account = as_account("tf-dist-controller", SYSTEM)
    controller = Controller(account, settings=ControllerSettings(volcano_jobs=False))
    document = short(tfjob(cleanPodPolicy="All", ttlSecondsAfterFinished=0))
    life = Life(admin, controller, room, TFJOBS, admin.create(TFJOBS, namespace, document))
    life.until(lambda: life.holds("Running"))
    assert life.memory() == {}, "this definition keeps it, so the test tests nothing"
    stored = admin.get(TFJOBS, namespace, "mnist")
    assert stored_status(stored)["tfDist"]["phase"] == "Running"
    # A client that may not write the status subresource cannot change the memory.
    forged = {"type": MEMORY_CONDITION, "status": "Unknown", "message": '{"phase": "Failed"}'}
    admin.patch(TFJOBS, namespace, "mnist", {"status": {"conditions": [forged]}})
    assert stored_status(admin.get(TFJOBS, namespace, "mnist"))["tfDist"]["phase"] == "Running"
    life.until(lambda: life.holds("Restarting") or len(names(admin, PODS, namespace)) == 3, worker_1=137)
    life.until(lambda: life.holds("Running"))
    life.until(life.gone, worker_0=0, worker_1=0)


def test_invalid_v1alpha1_job_is_explained_without_mention_of_layouts(
    admin: RestCluster, as_account: Account, namespace: str
) -> None:
    """The server returns the job at v1 to the controller, although the user has written v1alpha1."""
    # No rule of the definition covers this mistake, so servers with validation rules accept the job, too.
    container_ = {"name": "tensorflow", "image": "tf", "resources": {"limits": {"cpu": "much"}}}
    spec = {"replicaSpecs": [{"tfReplicaType": "MASTER", "template": {"spec": {"containers": [container_]}}}]}
    admin.create(TFJOBS_V1ALPHA1, namespace, {"metadata": {"name": "wrong"}, "spec": spec})
    controller = Controller(as_account("tf-dist-controller", SYSTEM), settings=ControllerSettings(volcano_jobs=False))

    def status() -> Object:
        controller.step()
        return dict(admin.get(TFJOBS_V1ALPHA1, namespace, "wrong").get("status") or {})

    until(lambda: "reason" in status(), 60)
    assert status()["phase"] == "Creating"
    assert "resources.limits.cpu: is not a quantity: the text 'much'" in status()["reason"]
    assert "the job starts when this is corrected" in status()["reason"]
    assert "layout" not in status()["reason"]
