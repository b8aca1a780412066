"""The hook: a cluster, as an Airflow connection names it, and what one does with jobs there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tf_dist.airflow.hooks.kubernetes_connection import DEFAULT_CONNECTION, ClusterArguments, open_connection
from tf_dist.airflow.shared.informer_registry import SHARED_INFORMERS
from tf_dist.airflow.versions import AirflowNotFoundException, BaseHook, conf

if TYPE_CHECKING:
    from tf_dist.airflow.shared.job_informer import SharedJobInformer
    from tf_dist.client.client import Client
    from tf_dist.client.connection import Connection
    from tf_dist.client.stored_jobs import StoredJob
    from tf_dist.cluster.api import Cluster, Object


def make_shared_informer(access: ClusterArguments, namespace: str, extras: Mapping[str, Any]) -> SharedJobInformer:
    """A shared informer with its own connection; ClusterError when there is none."""
    from tf_dist.airflow.shared.job_informer import SharedJobInformer

    streams = conf.getint("tf_dist", "log_streams", fallback=128)
    return SharedJobInformer(open_connection(access, extras), namespace, streams=streams)


class TFJobHook(BaseHook):
    """Jobs of one cluster.

    :param kubernetes_conn_id: a connection of type ``kubernetes``; the default one need not exist.
    :param in_cluster: whether to use the cluster that this process is a pod of.
    :param config_file: a kubeconfig, instead of the connection's.
    :param cluster_context: a context of it, instead of the current one.

    Nothing is asked of the cluster until something is needed. ``close`` it when done.
    """

    conn_name_attr = "kubernetes_conn_id"
    default_conn_name = DEFAULT_CONNECTION
    conn_type = "kubernetes"
    hook_name = "TensorFlow jobs"

    def __init__(
        self,
        kubernetes_conn_id: str | None = DEFAULT_CONNECTION,
        *,
        in_cluster: bool | None = None,
        config_file: str | None = None,
        cluster_context: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.access = ClusterArguments(
            kubernetes_conn_id=kubernetes_conn_id,
            in_cluster=in_cluster,
            config_file=config_file,
            cluster_context=cluster_context,
        )

    @classmethod
    def of(cls, access: ClusterArguments) -> TFJobHook:
        """The hook of these arguments."""
        return cls(**access.fields())

    def get_conn(self) -> Connection:
        """The cluster, and its usual namespace; ClusterError with a hint when there is none."""
        return self.connection

    def close(self) -> None:
        """Close what was opened; it may be used again."""
        connection = self.__dict__.pop("connection", None)
        if connection is not None:
            connection.close()

    @cached_property
    def connection(self) -> Connection:
        """The same, opened once."""
        return open_connection(self.access, self._extras())

    @property
    def cluster(self) -> Cluster:
        """Its nine verbs."""
        return self.connection.cluster

    def get_namespace(self) -> str:
        """Where jobs are that say nothing else; never empty."""
        return self.connection.namespace

    def client(self, namespace: str | None = None) -> Client:
        """What tf-dist does with jobs there, as in Python: submit, wait, scale, suspend, resume, …"""
        from tf_dist.client.client import Client

        return Client(connection=self.connection, namespace=namespace or "")

    def get_job(self, name: str, namespace: str | None = None) -> StoredJob:
        """A job by NAME, ``tfjob/NAME`` or ``vcjob/NAME``; NotFound."""
        return self.client(namespace).get(name)

    def get_pods(self, job: StoredJob) -> list[Object]:
        """The pods of a job."""
        return self.client().pods(job)

    def delete_job(self, job: StoredJob) -> None:
        """Delete this very job and what belongs to it; NotFound."""
        self.client().delete(job)

    @contextmanager
    def informer(self, namespace: str) -> Iterator[SharedJobInformer]:
        """The informer that all tasks of this process share for that namespace. Blocks: keep it off an event loop."""
        key = (self.access, namespace)
        informer = SHARED_INFORMERS.enter(key, lambda: make_shared_informer(self.access, namespace, self._extras()))
        try:
            yield informer
        finally:
            SHARED_INFORMERS.leave(key)

    def _extras(self) -> Mapping[str, Any]:
        """What the connection says besides; nothing if it is the default one and is not there."""
        name = self.access.kubernetes_conn_id
        if not name:
            return {}
        try:
            return dict(self.get_connection(name).extra_dejson)
        except AirflowNotFoundException:
            if name != DEFAULT_CONNECTION:
                raise
            return {}
