"""The status manager: writes pod statuses and events, and deletes pods that have ended."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

from tf_dist.cluster.api import EVENTS, PODS, Cluster, Object, PatchType, new_event
from tf_dist.cluster.client.informer import UidInformer
from tf_dist.cluster.kubelet.pod.pod_status import PodStartError
from tf_dist.core.api.timestamps import format_time
from tf_dist.errors import AlreadyExists, ClusterError

_log = logging.getLogger(__name__)


class StatusManager:
    """Writes statuses that changed, and nothing else; a pod that replaced the one meant is not touched."""

    def __init__(self, cluster: Cluster, pods: UidInformer, node: str) -> None:
        self._cluster = cluster
        self._pods = pods
        self._node = node

    def show(self, pod: Object, status: Object) -> Object | None:
        """Write the status; the pod after that, None when nothing changed; Conflict when it is outdated."""
        before = pod.get("status") or {}
        if _without_empty(status) == _without_empty(before):
            return None
        metadata = pod["metadata"]
        body = {
            "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
            "status": {key: None for key in before if key not in status} | status,
        }
        written = self._cluster.patch(
            PODS, metadata["namespace"], metadata["name"], body, kind=PatchType.MERGE, subresource="status"
        )
        self._pods.put(written)
        return written if written["metadata"]["resourceVersion"] != metadata["resourceVersion"] else None

    def warn(self, pod: Object, problem: PodStartError, now: float) -> None:
        """An Event about the pod, once for each problem. A failure to write it is logged."""
        metadata = pod["metadata"]
        mark = hashlib.sha256(f"{metadata['uid']} {problem.reason} {problem.text}".encode()).hexdigest()[:16]
        body = new_event(
            PODS,
            pod,
            type="Warning",
            reason=problem.reason,
            message=problem.text[:1000],
            source={"component": "kubelet", "host": self._node},
            now=format_time(now),
        )
        body["metadata"] = {"name": f"{metadata['name'][:200]}.{mark}"}
        try:
            self._cluster.create(EVENTS, metadata["namespace"], body)
        except AlreadyExists:
            pass
        except ClusterError as error:
            _log.info("failed to record event: pod=%s/%s error=%s", metadata["namespace"], metadata["name"], error)

    def delete(self, namespace: str, name: str, uid: str) -> None:
        """Delete the pod object, once nothing of it runs any more."""
        self._cluster.delete(PODS, namespace, name, uid=uid, grace_period=0)


_EMPTY: tuple[Any, ...] = (None, "", {}, [])


def _without_empty(value: Any) -> Any:
    """A value without what is empty: API servers add such fields (``lastProbeTime: null``) and drop others."""
    if isinstance(value, dict):
        said = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in said.items() if item not in _EMPTY}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value
