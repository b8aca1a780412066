"""Commands, environments and mounts of containers, as tables."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from tf_dist.cluster.api import Object
from tf_dist.cluster.kubelet.pod.pod_state import peer_names
from tf_dist.cluster.kubelet.pod.pod_status import PodStartError
from tf_dist.cluster.kubelet.pod.pod_volumes import (
    ClaimVolume,
    EmptyDirVolume,
    FilesVolume,
    HostPathVolume,
    plan_volume,
    refuse_mounts,
)
from tf_dist.cluster.kubelet.pod.podspec import PlanContext, expand, gpu_count, plan_container, pod_hostname

OBJECTS = {
    ("ConfigMap", "cm"): {"data": {"a": "1", "b": "2", "not a name": "x"}, "binaryData": {"bin": "//4="}},
    ("Secret", "s"): {"data": {"k": b64encode(b"hidden").decode()}},
}
POD: Object = {
    "metadata": {
        "name": "p-0",
        "namespace": "ns",
        "uid": "u",
        "labels": {"job": "j", "x.io/y": "z"},
        "annotations": {"note": 'say "hi"\n'},
    },
    "spec": {"containers": [], "nodeName": "n1", "serviceAccountName": "sa"},
}


def around(**changes: Any) -> PlanContext:
    values: dict[str, Any] = {
        "find": lambda kind, name: OBJECTS.get((kind, name)),
        "exists": lambda path: path in ("/", "/usr"),
        "pod_ip": "10.88.1.1",
        "host_ip": "192.0.2.7",
        "workdir": "/work",
        "allocatable": {"cpu": "8", "memory": "16Gi"},
    }
    return PlanContext(**values | changes)


def container(**fields: Any) -> Object:
    return {"name": "c", "image": "i", "command": ["run"], **fields}


def plan(**fields: Any) -> Any:
    return plan_container(POD, container(**fields), around())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("$(A)$(B)", "12"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$(NOPE)", "$(NOPE)"),
        ("$A ${A}", "$A ${A}"),
        ("$(A", "$(A"),
        ("$", "$"),
        ("a$$", "a$"),
        ("$()", "$()"),
        ("$($(A))", "$($(A))"),
    ],
)
def test_variables_are_expanded_as_in_kubernetes(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


@pytest.mark.parametrize("text", ["x", "$(", "$", "-", "$(A", "a-"])
def test_long_variables_are_read_in_linear_time(text: str) -> None:
    """In quadratic time, this would not end before the test's time limit."""
    long = text * (1_000_000 // len(text))
    assert expand(long, {"A": "1"}).replace("$", "") == long.replace("$", "")
    assert peer_names(long) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mnist-worker-0.mnist:2222,mnist-ps-0.mnist", ["mnist-worker-0.mnist", "mnist-ps-0.mnist"]),
        ("--chief=-a-.b--C.d", ["a-.b--"]),
        ("10.0.0.1", ["10.0", "0.1"]),
        ("no name", []),
    ],
)
def test_names_of_peers_in_variables(text: str, expected: list[str]) -> None:
    assert peer_names(text) == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("metadata.name", "p-0"),
        ("metadata.namespace", "ns"),
        ("metadata.uid", "u"),
        ("metadata.labels['job']", "j"),
        ("metadata.labels['x.io/y']", "z"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['note']", 'say "hi"\n'),
        ("spec.nodeName", "n1"),
        ("spec.serviceAccountName", "sa"),
        ("status.podIP", "10.88.1.1"),
        ("status.hostIP", "192.0.2.7"),
    ],
)
def test_field_refs_resolve(field: str, value: str) -> None:
    assert plan(env=[{"name": "V", "valueFrom": {"fieldRef": {"fieldPath": field}}}]).env["V"] == value


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("limits.cpu", None, "2"),
        ("limits.cpu", "1m", "1500"),
        ("limits.memory", "1Mi", "16384"),  # without a limit, the node's allocatable memory
        ("requests.memory", None, "0"),
    ],
)
def test_resource_field_refs_resolve(resource: str, divisor: str | None, value: str) -> None:
    reference = {"resource": resource, **({"divisor": divisor} if divisor else {})}
    env = [{"name": "V", "valueFrom": {"resourceFieldRef": reference}}]
    assert plan(env=env, resources={"limits": {"cpu": "1500m"}}).env["V"] == value


def test_env_order_and_precedence() -> None:
    found = plan(
        envFrom=[{"configMapRef": {"name": "cm"}}, {"prefix": "S_", "secretRef": {"name": "s"}}],
        env=[
            {"name": "a", "value": "own"},
            {"name": "before", "value": "$(later)"},
            {"name": "later", "value": "$(a) $(S_k)"},
            {"name": "empty"},
        ],
        args=["$(later)"],
    )
    own = {key: found.env[key] for key in ("a", "b", "before", "later", "empty", "S_k")}
    assert own == {"a": "own", "b": "2", "before": "$(later)", "later": "own hidden", "empty": "", "S_k": "hidden"}
    assert "not a name" not in found.env
    assert found.argv == ("run", "own hidden")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"envFrom": [{"configMapRef": {"name": "none"}}]}, 'configmap "none" not found'),
        ({"env": [{"name": "V", "valueFrom": {"secretKeyRef": {"name": "s", "key": "x"}}}]}, "Secret s has no key x"),
        ({"env": [{"name": "V", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}, "unknown field x"),
    ],
)
def test_error_contains_missing_reference(fields: Object, message: str) -> None:
    with pytest.raises(PodStartError, match=message) as caught:
        plan(**fields)
    assert (caught.value.reason, caught.value.container) == ("CreateContainerConfigError", "c")


def test_missing_optional_references_are_ignored() -> None:
    reference = {"name": "none", "key": "k", "optional": True}
    env = [{"name": "V", "valueFrom": {"configMapKeyRef": reference}}]
    assert "V" not in plan(env=env, envFrom=[{"secretRef": {"name": "none", "optional": True}}]).env


@pytest.mark.parametrize(
    ("image", "entrypoints", "argv"),
    [
        ("repo/i:v1", {"repo/i:v1": ("a",)}, ("a", "x")),
        ("repo/i:v1", {"repo/i": ("b",)}, ("b", "x")),
        ("reg:5000/i@sha256:00", {"reg:5000/i": ("c", "d")}, ("c", "d", "x")),
        ("i", {"i": ("sh", "-c", "echo $$ $(A) $$(A)")}, ("sh", "-c", "echo $$ $(A) $$(A)", "x")),
    ],
)
def test_entrypoint_of_image_is_used_without_command(
    image: str, entrypoints: dict[str, tuple[str, ...]], argv: tuple[str, ...]
) -> None:
    item = {"name": "c", "image": image, "args": ["x"]}
    assert plan_container(POD, item, around(entrypoints=entrypoints)).argv == argv


def test_container_without_command_and_entrypoint_fails() -> None:
    with pytest.raises(PodStartError, match="has no command") as caught:
        plan_container(POD, {"name": "c", "image": "i", "args": ["x"]}, around())
    assert caught.value.permanent
    assert "tf-dist run --entrypoint i=" in caught.value.hint


@pytest.mark.parametrize(
    ("wanted", "mounts", "expected"),
    [(None, [], "/work"), ("/usr", [], "/usr"), ("/image", [], "/work"), ("/image/x", ["/image"], "/image/x")],
)
def test_working_directory(wanted: str | None, mounts: list[str], expected: str) -> None:
    fields: Object = {"volumeMounts": [{"name": "v", "mountPath": path} for path in mounts]}
    assert plan(**fields, **({"workingDir": wanted} if wanted else {})).cwd == expected


def test_missing_working_directory_without_replacement_fails() -> None:
    with pytest.raises(PodStartError, match="workingDir /image does not exist"):
        plan_container(POD, container(workingDir="/image"), around(workdir="/"))


def test_container_env_overrides_base_environment() -> None:
    item = container(env=[{"name": "PATH", "value": "/own"}])
    found = plan_container(POD, item, around(base_env={"PATH": "/base", "HOME": "/h"}))
    assert (found.env["PATH"], found.env["HOME"], found.env["HOSTNAME"]) == ("/own", "/h", "p-0")


@pytest.mark.parametrize(
    ("resources", "count"),
    [({}, 0), ({"limits": {"nvidia.com/gpu": 2}}, 2), ({"requests": {"nvidia.com/gpu": "1"}}, 1)],
)
def test_gpu_count_from_resources(resources: Object, count: int) -> None:
    assert gpu_count(container(resources=resources)) == count


def test_long_host_name_is_truncated() -> None:
    assert pod_hostname({"metadata": {"name": "n" * 62 + ".rest"}, "spec": {}}) == "n" * 62


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        ({"emptyDir": {}}, EmptyDirVolume()),
        ({"emptyDir": None}, EmptyDirVolume()),
        ({"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}, EmptyDirVolume("mode=1777,size=1048576")),
        ({"hostPath": {"path": "/p", "type": "File"}}, HostPathVolume("/p", "File")),
        ({"persistentVolumeClaim": {"claimName": "c", "readOnly": True}}, ClaimVolume("c", True)),
        (
            {"configMap": {"name": "cm", "items": [{"key": "a", "path": "d/f", "mode": 0o600}]}},
            FilesVolume({"d/f": (b"1", 0o600)}),
        ),
        ({"configMap": {"name": "none", "optional": True}}, FilesVolume({})),
        ({"secret": {"secretName": "s", "defaultMode": 0o400}}, FilesVolume({"k": (b"hidden", 0o400)})),
        (
            {"downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            FilesVolume({"l": (b'job="j"\nx.io/y="z"', 0o644)}),
        ),
        (
            {
                "projected": {
                    "defaultMode": 0o440,
                    "sources": [
                        {"secret": {"name": "s"}},
                        {"configMap": {"name": "cm", "items": [{"key": "b", "path": "b"}]}},
                        {"serviceAccountToken": {"path": "token"}},
                    ],
                }
            },
            FilesVolume({"k": (b"hidden", 0o440), "b": (b"2", 0o440)}),
        ),
    ],
)
def test_volumes_are_planned(volume: Object, expected: object) -> None:
    assert plan_volume(POD, {"name": "v", **volume}, around()) == expected


@pytest.mark.parametrize(
    ("volume", "reason", "permanent"),
    [
        ({"configMap": {"name": "none"}}, "ContainerCreating", False),
        ({"configMap": {"name": "cm", "items": [{"key": "z", "path": "z"}]}}, "ContainerCreating", False),
        ({"nfs": {"server": "x", "path": "/"}}, "CreateContainerConfigError", True),
    ],
)
def test_impossible_volumes_fail(volume: Object, reason: str, permanent: bool) -> None:
    with pytest.raises(PodStartError) as caught:
        plan_volume(POD, {"name": "v", **volume}, around())
    assert (caught.value.reason, caught.value.permanent) == (reason, permanent)


def test_shared_mode_refuses_unsupported_mounts() -> None:
    found = plan(volumeMounts=[{"name": "v", "mountPath": "/p"}])
    refuse_mounts(found, {"v": HostPathVolume("/p/")}, "")
    for volume in (HostPathVolume("/other"), EmptyDirVolume()):
        with pytest.raises(PodStartError, match="cannot be mounted at /p"):
            refuse_mounts(found, {"v": volume}, "why")


def test_service_account_token_is_not_mounted() -> None:
    mount = {"name": "kube-api-access", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    assert plan(volumeMounts=[mount]).mounts == ()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"hostPath": {"path": "/data", "type": "Directory"}}, HostPathVolume("/data", "Directory")),
        ({"local": {"path": "/data"}}, HostPathVolume("/data")),
    ],
)
def test_bound_claim_resolves_to_its_volume(source: Object, expected: HostPathVolume) -> None:
    objects = {
        ("PersistentVolumeClaim", "c"): {"spec": {"volumeName": "pv"}},
        ("PersistentVolume", "pv"): {"spec": source},
    }
    found = around(find=lambda kind, name: objects.get((kind, name)))
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}
    assert plan_volume(POD, volume, found) == expected


def test_claim_bound_to_unsupported_volume_is_refused() -> None:
    objects = {
        ("PersistentVolumeClaim", "c"): {"spec": {"volumeName": "pv"}},
        ("PersistentVolume", "pv"): {"spec": {"nfs": {"server": "far", "path": "/"}}},
    }
    found = around(find=lambda kind, name: objects.get((kind, name)))
    with pytest.raises(PodStartError, match="claim c is bound to pv") as caught:
        plan_volume(POD, {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}, found)
    assert caught.value.permanent
