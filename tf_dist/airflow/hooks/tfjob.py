"""The hook: the cluster of an Airflow connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tf_dist.airflow.hooks.kubernetes_connection import ClusterArguments, extras_of, open_connection
from tf_dist.airflow.informers.informer_registry import SHARED_INFORMERS
from tf_dist.airflow.task_options import DEFAULT_CONNECTION
from tf_dist.airflow.version_compat import AirflowNotFoundException, BaseHook, conf

if TYPE_CHECKING:
    from tf_dist.airflow.informers.job_informer import SharedJobInformer
    from tf_dist.client.client import Client
    from tf_dist.client.connection import Connection
    from tf_dist.client.stored_jobs import StoredJob
    from tf_dist.cluster.api import Cluster


def make_shared_informer(access: ClusterArguments, namespace: str, extras: Mapping[str, Any]) -> SharedJobInformer:
    """A shared informer with its own connection. Raises ClusterError if it cannot connect."""
    from tf_dist.airflow.informers.job_informer import SharedJobInformer

    streams = conf.getint("tf_dist", "log_streams", fallback=128)
    return SharedJobInformer(open_connection(access, extras), namespace, streams=streams)


def job_summary(job: StoredJob) -> dict[str, Any]:
    """The return value of a task that did not run the job."""
    return {"name": job.name, "namespace": job.namespace, "uid": job.uid, "status": job.state}


class TFJobHook(BaseHook):
    """The cluster of an Airflow connection. Use ``client`` to submit, read and change jobs.

    :param kubernetes_conn_id: A connection of type ``kubernetes``. The default connection does not have to exist.
    :param in_cluster: Use the cluster of the pod in which this process runs.
    :param config_file: A kubeconfig, instead of that of the connection.
    :param cluster_context: A context of the kubeconfig, instead of the current one.

    The hook connects when it is first used.
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
        """The cluster and its default namespace. Raises ClusterError with a hint if it cannot connect."""
        return self.connection

    def close(self) -> None:
        """Close the connection. The hook may be used again."""
        connection = self.__dict__.pop("connection", None)
        if connection is not None:
            connection.close()

    @cached_property
    def connection(self) -> Connection:
        """The connection, opened once."""
        return open_connection(self.access, self._extras())

    @property
    def cluster(self) -> Cluster:
        """The API of the cluster."""
        return self.connection.cluster

    def get_namespace(self) -> str:
        """The default namespace of jobs. It is never empty."""
        return self.connection.namespace

    def client(self, namespace: str | None = None) -> Client:
        """The client of the cluster: ``submit``, ``get``, ``wait``, ``scale``, ``suspend``, ``resume``, ``delete``, ….

        Closing the client closes the connection of the hook: ``with TFJobHook().client() as client``.
        """
        from tf_dist.client.client import Client

        return Client(connection=self.connection, namespace=namespace or "")

    @contextmanager
    def informer(self, namespace: str) -> Iterator[SharedJobInformer]:
        """The informer that all tasks of this process share for the namespace. Blocks, so not for event loops."""
        key = (self.access, namespace)
        informer = SHARED_INFORMERS.enter(key, lambda: make_shared_informer(self.access, namespace, self._extras()))
        try:
            yield informer
        finally:
            SHARED_INFORMERS.leave(key)

    def _extras(self) -> Mapping[str, Any]:
        """The extras of the connection; none if the default connection does not exist."""
        name = self.access.kubernetes_conn_id
        if not name:
            return {}
        try:
            return extras_of(self.get_connection(name))
        except AirflowNotFoundException:
            if name != DEFAULT_CONNECTION:
                raise
            return {}
