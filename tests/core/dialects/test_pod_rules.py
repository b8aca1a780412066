"""What an API server refuses in a pod: one mistake for each template, reported with its path and a hint."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import Any

import pytest

from tests.core.dialects.documents import changed, errors, only_error, paths, template, v1, warnings
from tests.core.dialects.valid_objects import TEMPLATES, changed_objects
from tf_dist.core.dialects import parse
from tf_dist.errors import InvalidJob

AT = "spec.tfReplicaSpecs.Chief.template"
REQUIRED_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED_TERMS = "preferredDuringSchedulingIgnoredDuringExecution"


def with_pod(spec: dict[str, Any], container: dict[str, Any], metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    pod = template(**spec)
    pod["spec"]["containers"][0] |= container
    return changed(v1(), AT, pod if metadata is None else {**pod, "metadata": metadata})


def spread(**constraint: Any) -> dict[str, Any]:
    usual = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    return {"topologySpreadConstraints": [usual | constraint]}


def together(**term: Any) -> dict[str, Any]:
    return {"affinity": {"podAffinity": {REQUIRED_TERMS: [{"topologyKey": "zone", **term}]}}}


def node_terms(**requirement: Any) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}
    return {"affinity": {"nodeAffinity": {REQUIRED_TERMS: terms}}}


def volume(**source: Any) -> dict[str, Any]:
    return {"volumes": [{"name": "data", **source}]}


REFUSED_SPECS = [
    ({"activeDeadlineSeconds": 0}, "activeDeadlineSeconds"),
    ({"activeDeadlineSeconds": "x"}, "activeDeadlineSeconds"),
    ({"activeDeadlineSeconds": 1.5}, "activeDeadlineSeconds"),
    ({"terminationGracePeriodSeconds": -1}, "terminationGracePeriodSeconds"),
    ({"enableServiceLinks": "false"}, "enableServiceLinks"),
    ({"shareProcessNamespace": "true"}, "shareProcessNamespace"),
    ({"shareProcessNamespace": True, "hostPID": True}, "shareProcessNamespace"),
    ({"hostUsers": False, "hostPID": True}, "hostPID"),
    ({"hostUsers": False, "hostIPC": True}, "hostIPC"),
    ({"dnsPolicy": "Cluster"}, "dnsPolicy"),
    ({"dnsPolicy": "None"}, "dnsConfig.nameservers"),
    ({"dnsConfig": {"nameservers": ["dns.example"]}}, "dnsConfig.nameservers[0]"),
    ({"dnsConfig": {"nameservers": ["::1"] * 4}}, "dnsConfig.nameservers"),
    ({"dnsConfig": {"searches": ["a b"]}}, "dnsConfig.searches[0]"),
    ({"dnsConfig": {"searches": [f"a{n}" for n in range(33)]}}, "dnsConfig.searches"),
    ({"dnsConfig": {"searches": ["a." * 120] * 9}}, "dnsConfig.searches"),
    ({"preemptionPolicy": "Sometimes"}, "preemptionPolicy"),
    ({"serviceAccountName": "My_SA"}, "serviceAccountName"),
    ({"priorityClassName": "High Priority"}, "priorityClassName"),
    ({"priorityClassName": []}, "priorityClassName"),
    ({"priority": "high"}, "priority"),
    ({"runtimeClassName": "NVIDIA"}, "runtimeClassName"),
    ({"hostname": "a.b"}, "hostname"),
    ({"nodeSelector": {"a b": "c"}}, 'nodeSelector["a b"]'),
    ({"nodeSelector": {"pool": "a b"}}, "nodeSelector.pool"),
    ({"nodeSelector": ["gpu"]}, "nodeSelector"),
    ({"imagePullSecrets": ["regcred"]}, "imagePullSecrets[0]"),
    ({"hostAliases": [{"ip": "somewhere"}]}, "hostAliases[0].ip"),
    ({"securityContext": {"runAsUser": "root"}}, "securityContext.runAsUser"),
    ({"securityContext": {"fsGroup": -1}}, "securityContext.fsGroup"),
    ({"securityContext": {"fsGroupChangePolicy": "always"}}, "securityContext.fsGroupChangePolicy"),
    ({"securityContext": {"seccompProfile": {"type": "Localhost"}}}, "securityContext.seccompProfile.localhostProfile"),
    ({"securityContext": {"seccompProfile": {"type": "Default"}}}, "securityContext.seccompProfile.type"),
    (
        {"securityContext": {"seccompProfile": {"type": "RuntimeDefault", "localhostProfile": "a"}}},
        "securityContext.seccompProfile.localhostProfile",
    ),
    (
        {"securityContext": {"appArmorProfile": {"type": "Localhost"}}},
        "securityContext.appArmorProfile.localhostProfile",
    ),
    ({"tolerations": {"key": "a", "operator": "Exists"}}, "tolerations"),
    ({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}, "tolerations[0].value"),
    ({"tolerations": [{"key": "a", "operator": "Exists", "effect": "noSchedule"}]}, "tolerations[0].effect"),
    ({"tolerations": [{"key": "a", "operator": "exists"}]}, "tolerations[0].operator"),
    ({"tolerations": [{"operator": "Equal", "value": "b"}]}, "tolerations[0].operator"),
    ({"tolerations": [{"key": "a b", "operator": "Exists"}]}, "tolerations[0].key"),
    ({"tolerations": [{"key": "a", "value": "b c"}]}, "tolerations[0].value"),
    ({"tolerations": [{"key": "a", "operator": "Gt", "value": "b"}]}, "tolerations[0].value"),
    (
        {"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5}]},
        "tolerations[0].effect",
    ),
    (
        {"tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": "5"}]},
        "tolerations[0].tolerationSeconds",
    ),
    (
        {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone"}]},
        "topologySpreadConstraints[0].whenUnsatisfiable",
    ),
    (
        {"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]},
        "topologySpreadConstraints[0].maxSkew",
    ),
    (
        {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway"}] * 2},
        "topologySpreadConstraints[1]",
    ),
    (spread(minDomains=2), "topologySpreadConstraints[0].minDomains"),
    (spread(matchLabelKeys=["a"]), "topologySpreadConstraints[0].matchLabelKeys"),
    (together(matchLabelKeys=["a"]), f"affinity.podAffinity.{REQUIRED_TERMS}[0].matchLabelKeys"),
    (together(mismatchLabelKeys=["a"]), f"affinity.podAffinity.{REQUIRED_TERMS}[0].mismatchLabelKeys"),
    (
        together(labelSelector={"matchExpressions": [{"key": "a", "operator": "NotIn"}]}),
        f"affinity.podAffinity.{REQUIRED_TERMS}[0].labelSelector.matchExpressions[0].values",
    ),
    ({"schedulingGates": [{"name": "a"}, {"name": "a"}]}, "schedulingGates[1]"),
    (node_terms(key="a", operator="in", values=["b"]), f"affinity.nodeAffinity.{REQUIRED_TERMS}.nodeSelectorTerms[0]"),
    (node_terms(key="a", operator="In"), f"affinity.nodeAffinity.{REQUIRED_TERMS}.nodeSelectorTerms[0]"),
    (node_terms(key="a", operator="Exists", values=["b"]), f"affinity.nodeAffinity.{REQUIRED_TERMS}.nodeSelectorTerms"),
    (
        node_terms(key="a", operator="Gt", values=["1", "2"]),
        f"affinity.nodeAffinity.{REQUIRED_TERMS}.nodeSelectorTerms",
    ),
    (node_terms(operator="Exists"), f"affinity.nodeAffinity.{REQUIRED_TERMS}.nodeSelectorTerms[0]"),
    (
        {"affinity": {"nodeAffinity": {REQUIRED_TERMS: {"nodeSelectorTerms": []}}}},
        f"affinity.nodeAffinity.{REQUIRED_TERMS}.nodeSelectorTerms",
    ),
    (
        {"affinity": {"podAntiAffinity": {PREFERRED_TERMS: [{"podAffinityTerm": {"topologyKey": "zone"}}]}}},
        f"affinity.podAntiAffinity.{PREFERRED_TERMS}[0].weight",
    ),
    (
        {"affinity": {"podAffinity": {REQUIRED_TERMS: [{"labelSelector": {"matchLabels": {"a": "b"}}}]}}},
        f"affinity.podAffinity.{REQUIRED_TERMS}[0].topologyKey",
    ),
    (volume(emptyDir={"sizeLimit": "1GB"}), "volumes[0].emptyDir.sizeLimit"),
    (volume(emptyDir={"sizeLimit": "-1Gi"}), "volumes[0].emptyDir.sizeLimit"),
    (volume(emptyDir={}, hostPath={"path": "/x"}), "volumes[0]"),
    (volume(hostPath={"path": "/x", "type": "directory"}), "volumes[0].hostPath.type"),
    (volume(hostPath={"path": "/x/../y"}), "volumes[0].hostPath.path"),
    (volume(hostPath={}), "volumes[0].hostPath.path"),
    (volume(persistentVolumeClaim={}), "volumes[0].persistentVolumeClaim.claimName"),
    (volume(persistentVolumeClaim="claim"), "volumes[0].persistentVolumeClaim"),
    (volume(configMap={}), "volumes[0].configMap.name"),
    (volume(configMap={"name": "c", "defaultMode": 1000}), "volumes[0].configMap.defaultMode"),
    (volume(configMap={"name": "c", "items": [{"key": "a"}]}), "volumes[0].configMap.items[0].path"),
    (volume(configMap={"name": "c", "items": [{"key": "a", "path": "../b"}]}), "volumes[0].configMap.items[0].path"),
    (volume(secret={"name": "s"}), "volumes[0].secret.secretName"),
    (volume(nfs={"server": "s"}), "volumes[0].nfs.path"),
    (
        volume(downwardAPI={"items": [{"path": "a", "fieldRef": {"fieldPath": "spec.nodeName"}}]}),
        "volumes[0].downwardAPI.items[0].fieldRef.fieldPath",
    ),
    (
        volume(downwardAPI={"items": [{"path": "a", "resourceFieldRef": {"resource": "limits.cpu"}}]}),
        "volumes[0].downwardAPI.items[0].resourceFieldRef.containerName",
    ),
    (
        volume(projected={"sources": [{"secret": {"name": "s"}, "configMap": {"name": "c"}}]}),
        "volumes[0].projected.sources[0]",
    ),
    (
        volume(projected={"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 60}}]}),
        "volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds",
    ),
    ({"ephemeralContainers": [{"name": "debug", "image": "x"}]}, "ephemeralContainers"),
    (
        {"initContainers": [{"name": "i", "image": "x", "readinessProbe": {"exec": {"command": ["true"]}}}]},
        "initContainers[0].readinessProbe",
    ),
]


@pytest.mark.parametrize(("spec", "path"), REFUSED_SPECS)
def test_reports_what_an_api_server_refuses_in_a_pod(spec: dict[str, Any], path: str):
    problem = only_error(with_pod(spec, {"volumeMounts": []}))
    assert problem.path.startswith(f"{AT}.spec.{path}")


def handler(**fields: Any) -> dict[str, Any]:
    return {"readinessProbe": {"exec": {"command": ["true"]}, **fields}}


def source(**fields: Any) -> dict[str, Any]:
    return {"env": [{"name": "A", "valueFrom": fields}]}


REFUSED_CONTAINERS = [
    ({"imagePullPolicy": "ifnotpresent"}, "imagePullPolicy"),
    ({"terminationMessagePolicy": "Fallback"}, "terminationMessagePolicy"),
    ({"image": " img"}, "image"),
    ({"stdin": "yes"}, "stdin"),
    ({"ports": [{"containerPort": 70000}]}, "ports[0].containerPort"),
    ({"ports": [{"containerPort": 80, "protocol": "tcp"}]}, "ports[0].protocol"),
    ({"ports": [{"containerPort": 80, "hostPort": -1}]}, "ports[0].hostPort"),
    ({"ports": [{"containerPort": 80, "hostPort": 9}, {"containerPort": 81, "hostPort": 9}]}, "ports[1].hostPort"),
    (source(fieldRef={"fieldPath": "metadata.nodeName"}), "env[0].valueFrom.fieldRef.fieldPath"),
    (source(fieldRef={"fieldPath": "metadata.labels"}), "env[0].valueFrom.fieldRef.fieldPath"),
    (source(resourceFieldRef={"resource": "limits.gpu"}), "env[0].valueFrom.resourceFieldRef.resource"),
    (
        source(resourceFieldRef={"resource": "limits.memory", "divisor": "1m"}),
        "env[0].valueFrom.resourceFieldRef.divisor",
    ),
    ({"env": [{"name": "A", "value": "a", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}, "env[0]"),
    (source(secretKeyRef={"name": "s"}), "env[0].valueFrom.secretKeyRef.key"),
    (source(secretKeyRef={"key": "k"}), "env[0].valueFrom.secretKeyRef.name"),
    (source(secretKeyRef={"name": "My_Secret", "key": "k"}), "env[0].valueFrom.secretKeyRef.name"),
    (source(configMapKeyRef={"name": "c", "key": "a/b"}), "env[0].valueFrom.configMapKeyRef.key"),
    ({"envFrom": [{"configMapRef": {"name": "c"}, "secretRef": {"name": "s"}}]}, "envFrom[0]"),
    ({"envFrom": [{"prefix": "X_"}]}, "envFrom[0]"),
    ({"envFrom": [{"secretRef": {}}]}, "envFrom[0].secretRef.name"),
    ({"resources": {"limits": {"nvidia.com/gpu": "500m"}}}, 'resources.limits["nvidia.com/gpu"]'),
    ({"resources": {"limits": {"nvidia.com/gpu": 0.5}}}, 'resources.limits["nvidia.com/gpu"]'),
    ({"resources": {"requests": {"nvidia.com/gpu": 1}}}, 'resources.requests["nvidia.com/gpu"]'),
    (
        {"resources": {"requests": {"amd.com/gpu": 1}, "limits": {"amd.com/gpu": 2}}},
        'resources.requests["amd.com/gpu"]',
    ),
    ({"resources": {"limits": {"gpu": 1}}}, "resources.limits.gpu"),
    ({"resources": {"limits": {"mem": "1Gi"}}}, "resources.limits.mem"),
    ({"resources": {"limits": {"hugepages-2Mi": "4Mi"}}}, "resources"),
    ({"resources": {"claims": [{"name": "gpu"}]}}, "resources.claims[0].name"),
    ({"readinessProbe": {"periodSeconds": 5}}, "readinessProbe"),
    (handler(tcpSocket={"port": 80}), "readinessProbe"),
    (handler(periodSeconds=-1), "readinessProbe.periodSeconds"),
    (handler(periodSeconds="5s"), "readinessProbe.periodSeconds"),
    ({"livenessProbe": {"tcpSocket": {"port": 80}, "successThreshold": 2}}, "livenessProbe.successThreshold"),
    (handler(terminationGracePeriodSeconds=5), "readinessProbe.terminationGracePeriodSeconds"),
    ({"livenessProbe": {"httpGet": {"port": 0}}}, "livenessProbe.httpGet.port"),
    ({"livenessProbe": {"httpGet": {"path": "/"}}}, "livenessProbe.httpGet.port"),
    ({"livenessProbe": {"httpGet": {"port": 80, "scheme": "https"}}}, "livenessProbe.httpGet.scheme"),
    ({"livenessProbe": {"exec": {}}}, "livenessProbe.exec.command"),
    ({"lifecycle": {"preStop": {"exec": {"command": ["x"]}, "httpGet": {"port": 80}}}}, "lifecycle.preStop"),
    ({"lifecycle": {"preStop": {}}}, "lifecycle.preStop"),
    (
        {"securityContext": {"privileged": True, "allowPrivilegeEscalation": False}},
        "securityContext.allowPrivilegeEscalation",
    ),
    (
        {"securityContext": {"capabilities": {"add": ["CAP_SYS_ADMIN"]}, "allowPrivilegeEscalation": False}},
        "securityContext.allowPrivilegeEscalation",
    ),
    ({"securityContext": {"capabilities": ["NET_ADMIN"]}}, "securityContext.capabilities"),
    ({"securityContext": {"runAsNonRoot": "true"}}, "securityContext.runAsNonRoot"),
    ({"volumeMounts": [{"name": "data"}]}, "volumeMounts[0].mountPath"),
    ({"volumeMounts": [{"name": "data", "mountPath": "/d", "subPath": "../x"}]}, "volumeMounts[0].subPath"),
    ({"volumeMounts": [{"name": "data", "mountPath": "/d", "subPath": "/x"}]}, "volumeMounts[0].subPath"),
    (
        {"volumeMounts": [{"name": "data", "mountPath": "/d", "subPath": "x", "subPathExpr": "x"}]},
        "volumeMounts[0].subPathExpr",
    ),
    (
        {"volumeMounts": [{"name": "data", "mountPath": "/d", "recursiveReadOnly": "Enabled"}]},
        "volumeMounts[0].recursiveReadOnly",
    ),
    (
        {"volumeMounts": [{"name": "data", "mountPath": "/d", "mountPropagation": "Bidirectional"}]},
        "volumeMounts[0].mountPropagation",
    ),
    ({"volumeMounts": [{"name": "data", "mountPath": "/d", "readOnly": "true"}]}, "volumeMounts[0].readOnly"),
]


@pytest.mark.parametrize(("container", "path"), REFUSED_CONTAINERS)
def test_reports_what_an_api_server_refuses_in_a_container(container: dict[str, Any], path: str):
    assert only_error(with_pod({}, container)).path == f"{AT}.spec.containers[0].{path}"


@pytest.mark.parametrize(
    ("metadata", "path"),
    [
        ({"labels": {"team": "machine learning"}}, "labels.team"),
        ({"labels": {"team": "x" * 64}}, "labels.team"),
        ({"labels": {"a b": "x"}}, 'labels["a b"]'),
        ({"labels": ["team"]}, "labels"),
        ({"annotations": {"a b": "x"}}, 'annotations["a b"]'),
        ({"annotations": {"sidecar.istio.io/inject": False}}, 'annotations["sidecar.istio.io/inject"]'),
    ],
)
def test_reports_what_an_api_server_refuses_in_metadata(metadata: dict[str, Any], path: str):
    problem = only_error(with_pod({}, {}, metadata))
    assert problem.path == f"{AT}.metadata.{path}"
    assert problem.hint or path == "labels"


REQUIRED_FIELDS: list[tuple[dict[str, Any], str]] = [
    (volume(persistentVolumeClaim={}), "volumes[0].persistentVolumeClaim.claimName"),
    (volume(configMap={}), "volumes[0].configMap.name"),
    (volume(secret={}), "volumes[0].secret.secretName"),
    (volume(projected={"sources": [{"configMap": {}}]}), "volumes[0].projected.sources[0].configMap.name"),
    (volume(projected={"sources": [{"secret": {}}]}), "volumes[0].projected.sources[0].secret.name"),
    ({"dnsConfig": {"options": [{"value": "1"}]}}, "dnsConfig.options[0].name"),
    (
        {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}]},
        "topologySpreadConstraints[0].topologyKey",
    ),
    (
        {"topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]},
        "topologySpreadConstraints[0].maxSkew",
    ),
    (
        {"affinity": {"podAffinity": {PREFERRED_TERMS: [{"podAffinityTerm": {"topologyKey": "zone"}}]}}},
        f"affinity.podAffinity.{PREFERRED_TERMS}[0].weight",
    ),
    (
        {"affinity": {"nodeAffinity": {PREFERRED_TERMS: [{"preference": {}}]}}},
        f"affinity.nodeAffinity.{PREFERRED_TERMS}[0].weight",
    ),
    (
        {"affinity": {"nodeAffinity": {REQUIRED_TERMS: {}}}},
        f"affinity.nodeAffinity.{REQUIRED_TERMS}.nodeSelectorTerms",
    ),
    (
        together(labelSelector={"matchExpressions": [{"operator": "Exists"}]}),
        f"affinity.podAffinity.{REQUIRED_TERMS}[0].labelSelector.matchExpressions[0].key",
    ),
]
REQUIRED_FIELDS_OF_CONTAINERS: list[tuple[dict[str, Any], str]] = [
    ({"ports": [{"name": "a"}]}, "ports[0].containerPort"),
    ({"env": [{"value": "a"}]}, "env[0].name"),
    ({"volumeMounts": [{"name": "data"}]}, "volumeMounts[0].mountPath"),
    (source(configMapKeyRef={"key": "k"}), "env[0].valueFrom.configMapKeyRef.name"),
    (source(configMapKeyRef={"name": "c"}), "env[0].valueFrom.configMapKeyRef.key"),
    (source(secretKeyRef={"key": "k"}), "env[0].valueFrom.secretKeyRef.name"),
    (source(secretKeyRef={"name": "s"}), "env[0].valueFrom.secretKeyRef.key"),
    ({"envFrom": [{"configMapRef": {}}]}, "envFrom[0].configMapRef.name"),
    ({"envFrom": [{"secretRef": {}}]}, "envFrom[0].secretRef.name"),
    ({"livenessProbe": {"exec": {}}}, "livenessProbe.exec.command"),
    (
        {"livenessProbe": {"httpGet": {"port": 1, "httpHeaders": [{"value": "a"}]}}},
        "livenessProbe.httpGet.httpHeaders[0].name",
    ),
    ({"image": None}, "image"),
]


@pytest.mark.parametrize(
    ("spec", "container", "path"),
    [
        *((spec, {}, path) for spec, path in REQUIRED_FIELDS),
        *(({}, container, f"containers[0].{path}") for container, path in REQUIRED_FIELDS_OF_CONTAINERS),
    ],
)
def test_missing_field_is_reported_with_hint(spec: dict[str, Any], container: dict[str, Any], path: str):
    problems = {problem.path: problem for problem in errors(with_pod(spec, container))}
    assert problems[f"{AT}.spec.{path}"].hint.startswith("add ")


# Fields of kinds that are rare in jobs, and values that are only empty.
CLAIM: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


RULE: dict[str, Any] = {"action": "Restart", "exitCodes": {"operator": "In", "values": [3]}}
FIELD = {"fieldPath": "metadata.name"}


def claim(**spec: Any) -> dict[str, Any]:
    return volume(ephemeral={"volumeClaimTemplate": {"spec": {**CLAIM, **spec}}})


def windows(**options: Any) -> dict[str, Any]:
    return {"securityContext": {"windowsOptions": options}}


REFUSED_RARE_SPECS = [
    ({"preemptionPolicy": ""}, "preemptionPolicy"),
    ({"dnsConfig": {"searches": [""]}}, "dnsConfig.searches[0]"),
    ({"hostAliases": [{"ip": "1.2.3.4", "hostnames": [""]}]}, "hostAliases[0].hostnames[0]"),
    ({"securityContext": {"fsGroupChangePolicy": ""}}, "securityContext.fsGroupChangePolicy"),
    ({"securityContext": {"sysctls": [{"name": "a b", "value": "1"}]}}, "securityContext.sysctls[0].name"),
    ({"securityContext": {"sysctls": [{"name": "a", "value": "1"}] * 2}}, "securityContext.sysctls[1].name"),
    (windows(gmsaCredentialSpec=""), "securityContext.windowsOptions.gmsaCredentialSpec"),
    (windows(gmsaCredentialSpecName="A_B"), "securityContext.windowsOptions.gmsaCredentialSpecName"),
    (windows(runAsUserName="a/b"), "securityContext.windowsOptions.runAsUserName"),
    (windows(runAsUserName=".."), "securityContext.windowsOptions.runAsUserName"),
    (windows(runAsUserName="D\\" + "u" * 105), "securityContext.windowsOptions.runAsUserName"),
    ({"resourceClaims": [{"name": "a", "resourceClaimName": "A_B"}]}, "resourceClaims[0].resourceClaimName"),
    (spread(nodeTaintsPolicy=""), "topologySpreadConstraints[0].nodeTaintsPolicy"),
    (spread(matchLabelKeys=[""], labelSelector={}), "topologySpreadConstraints[0].matchLabelKeys[0]"),
    (
        spread(matchLabelKeys=["a"], labelSelector={"matchLabels": {"a": "b"}}),
        "topologySpreadConstraints[0].matchLabelKeys[0]",
    ),
    (
        together(matchLabelKeys=["a"], mismatchLabelKeys=["a"], labelSelector={}),
        f"affinity.podAffinity.{REQUIRED_TERMS}[0].matchLabelKeys[0]",
    ),
    (together(namespaces=[""]), f"affinity.podAffinity.{REQUIRED_TERMS}[0].namespaces[0]"),
    (
        {
            "affinity": {
                "nodeAffinity": {
                    REQUIRED_TERMS: {
                        "nodeSelectorTerms": [
                            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a", "b"]}]}
                        ]
                    }
                }
            }
        },
        f"affinity.nodeAffinity.{REQUIRED_TERMS}.nodeSelectorTerms[0].matchFields[0].values",
    ),
    (volume(nfs={"server": "s", "path": "x"}), "volumes[0].nfs.path"),
    (volume(csi={"driver": "A_B"}), "volumes[0].csi.driver"),
    (volume(csi={"driver": "a" * 64}), "volumes[0].csi.driver"),
    (volume(csi={"driver": "a", "nodePublishSecretRef": {}}), "volumes[0].csi.nodePublishSecretRef.name"),
    (volume(image={"pullPolicy": "Always"}), "volumes[0].image.reference"),
    (volume(image={"reference": "a", "pullPolicy": "always"}), "volumes[0].image.pullPolicy"),
    (volume(ephemeral={}), "volumes[0].ephemeral.volumeClaimTemplate"),
    (claim(accessModes=[]), "volumes[0].ephemeral.volumeClaimTemplate.spec.accessModes"),
    (claim(accessModes=["RWO"]), "volumes[0].ephemeral.volumeClaimTemplate.spec.accessModes[0]"),
    (claim(resources={}), "volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests.storage"),
    (
        claim(resources={"requests": {"storage": "0"}}),
        "volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests.storage",
    ),
    (claim(volumeMode="file"), "volumes[0].ephemeral.volumeClaimTemplate.spec.volumeMode"),
    (claim(storageClassName="A_B"), "volumes[0].ephemeral.volumeClaimTemplate.spec.storageClassName"),
    (volume(gitRepo={"repository": "r", "directory": ".."}), "volumes[0].gitRepo.directory"),
    (volume(iscsi={"targetPortal": "p", "iqn": "x", "lun": 1}), "volumes[0].iscsi.iqn"),
    (volume(iscsi={"targetPortal": "p", "iqn": "iqn.2001-04.a:b", "lun": 256}), "volumes[0].iscsi.lun"),
    (volume(fc={"lun": 1}), "volumes[0].fc"),
    (volume(fc={"targetWWNs": ["a"]}), "volumes[0].fc.lun"),
    (volume(awsElasticBlockStore={"volumeID": "v", "partition": 256}), "volumes[0].awsElasticBlockStore.partition"),
    (
        volume(azureDisk={"diskName": "d", "diskURI": "https://x", "kind": "Managed"}),
        "volumes[0].azureDisk.diskURI",
    ),
    (
        volume(azureDisk={"diskName": "d", "diskURI": "https://x", "cachingMode": "no"}),
        "volumes[0].azureDisk.cachingMode",
    ),
    (volume(flocker={"datasetName": "a/b"}), "volumes[0].flocker.datasetName"),
    (volume(rbd={"monitors": [], "image": "i"}), "volumes[0].rbd.monitors"),
    (volume(quobyte={"registry": "r", "volume": "v"}), "volumes[0].quobyte.registry"),
    (volume(storageos={"volumeName": "A_B"}), "volumes[0].storageos.volumeName"),
    (
        volume(
            projected={
                "sources": [
                    {"serviceAccountToken": {"path": "a"}},
                    {"secret": {"name": "s", "items": [{"key": "k", "path": "a"}]}},
                ]
            }
        ),
        "volumes[0].projected.sources[1].secret.items[0].path",
    ),
]


@pytest.mark.parametrize(("spec", "path"), REFUSED_RARE_SPECS)
def test_reports_errors_in_rare_fields(spec: dict[str, Any], path: str) -> None:
    problem = only_error(with_pod(spec, {"volumeMounts": []}))
    assert problem.path.startswith(f"{AT}.spec.{path}")
    assert problem.hint


@pytest.mark.parametrize(
    ("container", "path"),
    [
        ({"restartPolicy": ""}, "restartPolicy"),
        ({"restartPolicyRules": [RULE]}, "restartPolicy"),
        ({"restartPolicy": "Never", "restartPolicyRules": [RULE] * 21}, "restartPolicyRules"),
        ({"restartPolicy": "Never", "restartPolicyRules": [RULE | {"action": "x"}]}, "restartPolicyRules[0].action"),
        ({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]}, "restartPolicyRules[0].exitCodes"),
        ({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}] * 2}, "resizePolicy[1]"),
        ({"securityContext": {"procMount": ""}}, "securityContext.procMount"),
        ({"lifecycle": {"preStop": {"sleep": {"seconds": 31}}}}, "lifecycle.preStop.sleep.seconds"),
        ({"lifecycle": {"postStart": {"sleep": {"seconds": -1}}}}, "lifecycle.postStart.sleep.seconds"),
        ({"env": [{"name": "A", "valueFrom": {"fieldRef": FIELD | {"apiVersion": "v2"}}}]}, "env[0].valueFrom"),
    ],
)
def test_reports_errors_in_rare_fields_of_container(container: dict[str, Any], path: str) -> None:
    problem = only_error(with_pod({}, {"volumeMounts": [], **container}))
    assert problem.path.startswith(f"{AT}.spec.containers[0].{path}")
    assert problem.hint


TAKEN_SPECS: list[dict[str, Any]] = [
    {"tolerations": [{"operator": "Exists"}, {"key": "a"}, {"key": "a", "value": "", "operator": ""}]},
    {"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}]},
    {"nodeSelector": {"a.example/b": ""}, "hostNetwork": None, "affinity": {}},
    {"hostPID": True, "hostIPC": True, "hostUsers": True, "shareProcessNamespace": False},
    {"hostPID": False, "hostIPC": False, "hostUsers": False, "shareProcessNamespace": True},
    {"securityContext": {"runAsUser": 0, "sysctls": [{"name": "kernel.shm_rmid_forced", "value": ""}]}},
    {"imagePullSecrets": [{"name": "regcred"}, {}], "serviceAccount": "sa", "overhead": {"cpu": "10m"}},
    {
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["::1"], "searches": ["a_b.example."], "options": [{"name": "o"}]},
    },
    volume(emptyDir={"sizeLimit": 5, "medium": "Memory"}),
    volume(emptyDir=None, secret={"secretName": "s", "items": [], "optional": True}),
    volume(hostPath={"path": "/x", "type": ""}),
    volume(projected={"sources": [{"serviceAccountToken": {"path": "t"}}, {"configMap": {"name": "c"}}]}),
    volume(csi={"driver": "d", "volumeAttributes": {"a": "b"}}),
    volume(
        ephemeral={
            "volumeClaimTemplate": {
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
            }
        }
    ),
    node_terms(key="a", operator="Gt", values=["5"]),
    {"affinity": {"nodeAffinity": {PREFERRED_TERMS: [{"weight": 1, "preference": {}}]}}},
    {"affinity": {"nodeAffinity": {REQUIRED_TERMS: {"nodeSelectorTerms": [{}]}}}},
    spread(),
    spread(minDomains=2, whenUnsatisfiable="DoNotSchedule", matchLabelKeys=["a"], labelSelector={}),
    together(mismatchLabelKeys=["a"], labelSelector={"matchExpressions": [{"key": "a", "operator": "Exists"}]}),
    {"tolerations": [{"key": "a", "operator": "Lt", "value": "-10"}]},
    {"dnsConfig": {"nameservers": ["::1"] * 3, "searches": ["."] * 32}},
    {"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "a"}}},
    {
        "initContainers": [
            {"name": "i", "image": "x", "restartPolicy": "Always", "startupProbe": {"tcpSocket": {"port": 1}}}
        ]
    },
]
TAKEN_CONTAINERS: list[dict[str, Any]] = [
    {"resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": 1, "cpu": 0.5}}},
    {"resources": {"limits": {"example.com/a.b-c": 1, "memory": 1e9, "hugepages-2Mi": "4Mi"}}},
    {"resources": {"requests": {"ephemeral-storage": "1.5Gi"}}, "ports": [{"containerPort": 80, "hostPort": 0}]},
    {"env": [{"name": "A-b.c", "value": ""}, {"name": "A", "value": "", "valueFrom": None}]},
    source(fieldRef={"fieldPath": "metadata.annotations['Example.com/A']", "apiVersion": "v1"}),
    source(fieldRef={"fieldPath": "status.hostIP"}),
    source(resourceFieldRef={"resource": "limits.memory", "divisor": "1Mi"}),
    {"livenessProbe": {"httpGet": {"port": "http", "httpHeaders": [{"name": "X-A"}]}, "failureThreshold": 0}},
    {"livenessProbe": {"grpc": {"port": 5000, "service": ""}}, "lifecycle": {"postStart": {"sleep": {"seconds": 1}}}},
    {"securityContext": {"privileged": False, "allowPrivilegeEscalation": False, "runAsNonRoot": True}},
    {"terminationMessagePolicy": "FallbackToLogsOnError", "tty": False, "command": [], "args": None},
    {"volumeMounts": [{"name": "data", "mountPath": "/d", "subPath": "a/..b"}]},
    {"volumeMounts": [{"name": "data", "mountPath": "/d", "readOnly": True, "recursiveReadOnly": "Enabled"}]},
    {"livenessProbe": {"tcpSocket": {"port": 80}, "successThreshold": 1, "terminationGracePeriodSeconds": 5}},
    handler(successThreshold=2),
    source(resourceFieldRef={"resource": "limits.cpu", "divisor": "1m"}),
]


@pytest.mark.parametrize(
    ("spec", "container"),
    [*((spec, {"volumeMounts": []}) for spec in TAKEN_SPECS), *(({}, container) for container in TAKEN_CONTAINERS)],
)
def test_accepts_what_api_server_accepts(spec: dict[str, Any], container: dict[str, Any]):
    assert not parse(with_pod(spec, container)).warnings


@pytest.mark.parametrize(
    ("pod", "container", "told"),
    [
        ({"requests": {"cpu": "2"}}, {"requests": {"cpu": 2}}, ""),
        ({"requests": {"cpu": "2"}}, {"requests": {"cpu": "2500m"}}, "2 is requested for the pod, but"),
        ({"requests": {"cpu": "2"}}, {"limits": {"cpu": 3}}, "its containers request 3 together"),
        ({"requests": {"cpu": "2"}}, {"requests": {"cpu": 1}, "limits": {"cpu": 3}}, ""),
        ({"limits": {"cpu": "2"}}, {"requests": {"cpu": 1}}, ""),
    ],
)
def test_pod_requests_must_cover_container_requests(pod: dict[str, Any], container: dict[str, Any], told: str):
    document = with_pod({"resources": pod}, {"volumeMounts": [], "resources": container})
    if told:
        problem = only_error(document)
        assert problem.path == f"{AT}.spec.resources.requests.cpu"
        assert told in problem.message
    else:
        parse(document)


def test_lenient_parse_warns_of_pod_mistakes():
    document = with_pod({}, {"image": "my image"})
    assert paths(parse(document, strict=False).warnings) == [f"{AT}.spec.containers[0].image"]
    assert only_error(document).path == f"{AT}.spec.containers[0].image"


def test_keys_of_other_kubernetes_versions_are_known():
    assert not warnings(with_pod({"schedulingGroup": {}}, {}))


def test_warns_of_relative_mount_path() -> None:
    (found,) = warnings(with_pod({}, {"volumeMounts": [{"name": "data", "mountPath": "x"}]}))
    assert found.path.endswith("volumeMounts[0].mountPath")
    assert found.hint == "write /x"


@pytest.mark.parametrize("name", TEMPLATES)
def test_invalid_values_raise_no_other_error(name: str) -> None:
    """``tests/deploy/test_server_rules.py`` compares all of these with an API server; here, every ninth is enough."""
    assert parse(changed(v1(), AT, TEMPLATES[name]))
    for _, _, pod in islice(changed_objects(TEMPLATES[name]), 0, None, 9):
        with suppress(InvalidJob):
            parse(changed(v1(), AT, pod))
