"""The cluster of a task: an Airflow connection of type ``kubernetes``, and the arguments of the task."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from tf_dist.airflow.task_options import DEFAULT_CONNECTION
from tf_dist.client.connection import Connection, connect
from tf_dist.cluster.client import client_config
from tf_dist.core.model.names import is_dns_label
from tf_dist.core.pipeline.run_options import NAME_HINT, shown_value
from tf_dist.errors import ClusterError, Unavailable

_OLD_PREFIX: Final = "extra__kubernetes__"
_FLAGS: Final = {**dict.fromkeys(("true", "1", "yes"), True), **dict.fromkeys(("false", "0", "no"), False)}
_INSECURE: Final = "insecure-skip-tls-verify"
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterArguments:
    """Arguments that name a cluster, as in the Kubernetes provider. They are not secret, so triggers may store them."""

    kubernetes_conn_id: str | None = DEFAULT_CONNECTION
    in_cluster: bool | None = None
    config_file: str | None = None
    cluster_context: str | None = None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """The arguments among ``fields``."""
        known = cls.__dataclass_fields__
        return cls(**{key: value for key, value in fields.items() if key in known})

    def fields(self) -> dict[str, Any]:
        """The arguments as plain JSON."""
        return asdict(self)


def extras_of(connection: Any) -> dict[str, Any]:
    """The extras of an Airflow connection. Raises ClusterError, without showing them, if they are not a JSON object.

    Airflow reads extras that are not JSON as none, and the job would run in another cluster.
    """
    try:
        given = json.loads(connection.extra or "null")
    except ValueError:
        given = connection.extra
    if not isinstance(given, dict | None):
        what = f"the extra of connection {connection.conn_id} is not a JSON object"
        raise ClusterError(what, hint='write, for example, {"kube_config_path": "/files/kubeconfig"}')
    return dict(connection.extra_dejson or {})  # this also makes Airflow mask them


def open_connection(access: ClusterArguments, extras: Mapping[str, Any]) -> Connection:
    """Connect to the cluster. ``extras``: the extras of the connection. Raises ClusterError with a hint.

    Arguments override the connection. If neither names a cluster, the choice is that of the command line: the local
    cluster if it runs, or else the cluster of the pod or of the kubeconfig.
    """
    context = access.cluster_context or _text(extras, "cluster_context")
    inside = access.in_cluster if access.in_cluster is not None else _flag(extras, "in_cluster")
    file = access.config_file or _text(extras, "kube_config_path")
    content = _extra(extras, "kube_config")
    unverified, namespace = _flag(extras, "disable_verify_ssl"), _text(extras, "namespace")
    if namespace and not is_dns_label(namespace):
        what = f"namespace in the extra of the connection: {shown_value(namespace)} is not a name"
        raise ClusterError(what, hint=NAME_HINT)
    if sum((bool(inside), bool(file), bool(content))) > 1:
        raise ClusterError(
            "in_cluster, config_file and kube_config each name a cluster", hint="leave all but one of them out"
        )
    if inside:
        found = client_config.in_cluster_config()
        if found is None:
            raise Unavailable("in_cluster is set, and this is not a pod with a service account", hint="leave it out")
        connection = _of_place(found)
    elif content and not access.config_file:
        connection = _of_place(_from_content(content, context))
    else:
        connection = connect(file, context)
    if unverified:
        connection = _unverified(connection)
    return replace(connection, namespace=namespace or connection.namespace)


def _unverified(connection: Connection) -> Connection:
    """The connection without verification of the server's certificate. Each use is logged."""
    place = connection.place
    if place is None or not place.server.startswith("https:"):
        return connection
    _LOG.warning("the certificate of %s is not verified: the connection sets disable_verify_ssl", place.server)
    connection.close()
    return replace(_of_place(replace(place, trust={**place.trust, _INSECURE: True})), name=connection.name)


def _of_place(place: client_config.KubeContext) -> Connection:
    return Connection(place.cluster(), place.namespace, place.name, place)


def _from_content(content: Any, context: str) -> client_config.KubeContext:
    """The cluster of a kubeconfig in the connection. A file holds the kubeconfig only while it is read."""
    text = content if isinstance(content, str) else json.dumps(content)
    descriptor, path = tempfile.mkstemp(prefix="tf-dist-", suffix=".kubeconfig")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        return client_config.load_config(path, context or None)
    except ClusterError as error:
        raise type(error)(str(error).replace(path, "the connection's kube_config"), hint=error.hint) from None
    finally:
        os.unlink(path)


def _extra(extras: Mapping[str, Any], name: str) -> Any:
    found = extras.get(name)
    return extras.get(f"{_OLD_PREFIX}{name}") if found is None else found


def _text(extras: Mapping[str, Any], name: str) -> str:
    found = _extra(extras, name) or ""
    if not isinstance(found, str):
        raise ClusterError(f"{name} in the extra of the connection must be text", hint="write it in quotes")
    return found


def _flag(extras: Mapping[str, Any], name: str) -> bool:
    found = str(_extra(extras, name) or False).strip().lower()
    if found not in _FLAGS:
        what = f"{name} in the extra of the connection is neither true nor false"
        raise ClusterError(what, hint=f"write true or false instead of {shown_value(found)}")
    return _FLAGS[found]
