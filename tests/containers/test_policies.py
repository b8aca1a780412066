"""Admission policies of a cluster that change or refuse pods. tf-dist uses pods as the API server stores them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.containers.conftest import FORMATS, TRAINER, Namespace, small_gang
from tests.waiting import until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(600)]
every_format = pytest.mark.parametrize("format_", FORMATS)
SIDECAR = {"name": "proxy", "image": TRAINER, "imagePullPolicy": "IfNotPresent", "command": ["sleep", "3600"]}
# Mutations of pods. A value cannot be a list of objects.
FIRST_CONTAINER = "[JSONPatch{op: 'add', path: '/spec/containers/0', value: Object.spec.containers{%s}}]"
INIT_CONTAINER = (
    "(has(object.spec.initContainers) ? [] : [JSONPatch{op: 'add', path: '/spec/initContainers', value: []}])"
    " + [JSONPatch{op: 'add', path: '/spec/initContainers/-', value: Object.spec.initContainers{%s}}]"
)
IMAGE = f"[JSONPatch{{op: 'replace', path: '/spec/containers/0/image', value: '{TRAINER}'}}]"


@pytest.fixture
def mutated(other: Namespace) -> Namespace:
    """A namespace for one test, on an API server with MutatingAdmissionPolicies."""
    if "mutatingadmissionpolicies" not in other.run("kubectl", "api-resources", "-o", "name"):
        pytest.skip("this API server has no MutatingAdmissionPolicy: the feature gate of that name is off")
    return other


def policy_of(space: Namespace, kind: str, spec: dict[str, Any], binding: dict[str, Any]) -> list[dict[str, Any]]:
    """A policy for new pods of a namespace, and its binding."""
    version = f"admissionregistration.k8s.io/{'v1' if kind.startswith('V') else 'v1beta1'}"
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    rules: dict[str, Any] = {"resourceRules": [pods]}
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": space.name}}}
    policy = {"failurePolicy": "Fail", "matchConstraints": rules, **spec}
    bound = {"policyName": space.name, "matchResources": here, **binding}
    kinds = ((kind, policy), (f"{kind}Binding", bound))
    return [{"apiVersion": version, "kind": one, "metadata": {"name": space.name}, "spec": body} for one, body in kinds]


@contextmanager
def in_force(space: Namespace, objects: list[dict[str, Any]], pod: dict[str, Any], shows: str) -> Iterator[None]:
    """Apply the objects, and wait until the dry run of a pod shows the effect of the policy."""
    everything = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    space.run("kubectl", "apply", "-f", "-", given=everything)
    try:
        create = ("create", "--dry-run=server", "-o", "json", "-f", "-")
        until(lambda: shows in _said(space, create, json.dumps(pod)), 60, every=0.5)
        yield
    finally:
        space.run("kubectl", "delete", "-f", "-", given=everything)


def _said(space: Namespace, command: tuple[str, ...], document: str) -> str:
    """The output of kubectl, whether the command succeeds or not."""
    return space.run("sh", "-c", f'kubectl -n {space.name} "$@" 2>&1', "sh", *command, given=document, check=False)


def probe(**container: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "tensorflow", "image": "nowhere/image:1", **container}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": spec}


def mutation(space: Namespace, expression: str) -> list[dict[str, Any]]:
    patch = {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}
    spec = {"reinvocationPolicy": "Never", "mutations": [patch]}
    return policy_of(space, "MutatingAdmissionPolicy", spec, {})


def container(**more: Any) -> str:
    """The fields of the sidecar in CEL."""
    return ", ".join(f"{key}: {json.dumps(value)}" for key, value in {**SIDECAR, **more}.items())


@every_format
def test_job_runs_with_image_rewritten_by_policy(mutated: Namespace, format_: str) -> None:
    with in_force(mutated, mutation(mutated, IMAGE), probe(), TRAINER):
        document = small_gang(format_, "rewritten", "true", replicas=2, containers=[{"image": "nowhere/image:1"}])
        name = mutated.apply(document)
        mutated.tf_dist("wait", name, "--timeout", "180")
        mutated.delete(name, FORMATS[format_])


@every_format
def test_job_ends_with_injected_native_sidecar(mutated: Namespace, format_: str) -> None:
    sidecar = INIT_CONTAINER % container(restartPolicy="Always")
    with in_force(mutated, mutation(mutated, sidecar), probe(), '"proxy"'):
        name = mutated.apply(small_gang(format_, "beside", "sleep 2", replicas=2))
        mutated.tf_dist("wait", name, "--timeout", "180")
        mutated.delete(name, FORMATS[format_])


@every_format
def test_injected_first_container_does_not_hide_trainer(mutated: Namespace, format_: str) -> None:
    """The first container of the pod is the proxy, which never ends."""
    with in_force(mutated, mutation(mutated, FIRST_CONTAINER % container()), probe(), '"proxy"'):
        name = mutated.apply(small_gang(format_, "behind", "echo trained; sleep 1", replicas=2))
        if format_ == "v1alpha1":  # ends with the container tensorflow, and stops the others
            mutated.tf_dist("wait", name, "--timeout", "180")
        else:
            mutated.until_shown(["explain", name], "sidecar", seconds=180)
            assert "trained" in mutated.tf_dist("logs", name)
        mutated.delete(name, FORMATS[format_])


def test_refused_pods_are_reported_and_start_after_policy_is_deleted(other: Namespace) -> None:
    """Jobs of all formats run at once, because refused creations are retried only after up to a minute."""
    rule = {"expression": "object.metadata.?labels['team'].hasValue()", "message": "every pod needs the label team"}
    objects = policy_of(other, "ValidatingAdmissionPolicy", {"validations": [rule]}, {"validationActions": ["Deny"]})
    with in_force(other, objects, probe(), "every pod needs"):
        jobs = {one: other.apply(small_gang(one, f"refused-{one}", "true", replicas=2)) for one in FORMATS}
        for name in jobs.values():
            said = other.until_shown(["explain", name], "every pod needs the label team", seconds=180)
            assert other.name in said  # the name of the policy
    for format_, name in jobs.items():
        other.tf_dist("wait", name, "--timeout", "240")
        other.delete(name, FORMATS[format_])


def test_network_policy_between_replicas_is_reported(other: Namespace) -> None:
    """The report depends on the policies only. A cluster does not show whether its network enforces them."""
    deny = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "default-deny"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
    }
    other.kubectl("apply", "-f", "-", given=json.dumps(deny))
    name = other.apply(small_gang("v1", "apart", "sleep 600", replicas=2))
    other.until_shown(["explain", name], "NetworkPolicy default-deny keeps apart-worker-0 from reaching", seconds=180)
    other.delete(name)
