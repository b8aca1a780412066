"""The keys that Kubernetes knows in a pod template (a test compares them with the API's own definitions).

A key that is not here is most likely a typing mistake where it resembles one that is, and most likely newer than this
list where not.
"""

from __future__ import annotations

from typing import Final


def _keys(text: str) -> frozenset[str]:
    return frozenset(text.split())


TEMPLATE: Final = _keys("metadata spec")

METADATA: Final = _keys(
    """annotations creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName generation
    labels managedFields name namespace ownerReferences resourceVersion selfLink uid"""
)

POD_SPEC: Final = _keys(
    """activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy enableServiceLinks
    ephemeralContainers evictionResponders hostAliases hostIPC hostNetwork hostPID hostUsers hostname hostnameOverride
    imagePullSecrets initContainers nodeName nodeSelector os overhead preemptionPolicy priority
    priorityClassName readinessGates resourceClaims resources restartPolicy runtimeClassName schedulerName
    schedulingGates schedulingGroup securityContext serviceAccount serviceAccountName setHostnameAsFQDN
    shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes
    workloadRef"""
)

CONTAINER: Final = _keys(
    """args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resizePolicy
    resources restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce
    terminationMessagePath terminationMessagePolicy tty volumeDevices volumeMounts workingDir"""
)

ENV: Final = _keys("name value valueFrom")

ENV_SOURCE: Final = _keys("configMapKeyRef fieldRef fileKeyRef resourceFieldRef secretKeyRef")

MOUNT: Final = _keys("mountPath bindMountOptions mountPropagation name readOnly recursiveReadOnly subPath subPathExpr")

PORT: Final = _keys("containerPort hostIP hostPort name protocol")

RESOURCES: Final = _keys("claims limits requests")

VOLUME: Final = _keys(
    """awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI emptyDir ephemeral fc
    flexVolume flocker gcePersistentDisk gitRepo glusterfs hostPath image iscsi name nfs persistentVolumeClaim
    photonPersistentDisk portworxVolume projected quobyte rbd scaleIO secret storageos vsphereVolume"""
)
