"""Real clusters: from a kubeconfig, or from inside a pod, to a client that stays logged in.

Files, trust and tokens are read here and not by the ``kubernetes`` package, which (releases 35 to 37) hides why a
plugin failed, never reads a token file again, leaves keys in the temporary folder of a process that is killed, and
takes a third of a second to import. It runs exec plugins and providers; the requests are ``RestCluster``'s own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tf_dist.cluster import kube_auth, kube_files, kube_tls
from tf_dist.cluster.credentials import Grant, Renewed
from tf_dist.cluster.kube_proxy import proxy_of
from tf_dist.errors import ClusterError, Unavailable

if TYPE_CHECKING:
    from tf_dist.cluster.rest import RestCluster

IN_CLUSTER: Final = "in-cluster"
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
NO_CLUSTER: Final = (
    "start one on this machine: tf-dist local up; or name one: --kubeconfig FILE, --context NAME, "
    "$KUBECONFIG, ~/.kube/config"
)


@dataclass(frozen=True, slots=True)
class KubeContext:
    """A cluster, and somebody to be there. ``server`` is a URL without secrets; ``namespace`` is never empty."""

    name: str
    server: str
    namespace: str
    trust: Mapping[str, Any]
    source: Callable[[], Grant]

    def cluster(
        self,
        *,
        retries: int = 3,
        stall: float = 90.0,
        timeout: float = 30.0,
        connections: int = 16,
        called: Callable[[str, str, int, float], None] | None = None,
    ) -> RestCluster:
        """A client; the arguments are ``RestCluster``'s. ClusterError when certificates cannot be read."""
        from tf_dist.cluster.rest import RestCluster

        secure = self.server.startswith("https:")
        tls = kube_tls.context(self.trust) if secure else None
        return RestCluster(
            self.server,
            credentials=Renewed(self.source, use=kube_tls.using(tls)) if tls else Renewed(self.source),
            ssl_context=tls,
            server_name=str(self.trust.get("tls-server-name") or "") if secure else "",
            proxy=proxy_of(self.server, str(self.trust.get("proxy-url") or "")),
            retries=retries,
            stall=stall,
            timeout=timeout,
            connections=connections,
            called=called,
        )


def load(kubeconfig: str | None = None, context: str | None = None) -> KubeContext:
    """The cluster that these name, else $KUBECONFIG, else the one we run in, else ~/.kube/config.

    Unavailable when there is none; ClusterError, with what is known, when it cannot be what was named.
    """
    if not kubeconfig and not context and not os.environ.get("KUBECONFIG") and (inside := in_cluster()):
        return inside
    files = kube_files.files(kubeconfig)
    if not files:
        raise Unavailable("no cluster is at hand", hint=NO_CLUSTER)
    return _outside(kube_files.choose(files, context))


def in_cluster(environ: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT) -> KubeContext | None:
    """The cluster that this process is a pod of, as its service account; None if it is in no pod with one."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port or not (folder / "token").is_file():
        return None
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    space = folder / "namespace"
    namespace = space.read_text().strip() if space.is_file() else ""
    trust = {"certificate-authority": str(folder / "ca.crt")}
    return KubeContext(IN_CLUSTER, server, namespace or "default", trust, kube_auth.token_file(folder / "token"))


def _outside(chosen: kube_files.Chosen) -> KubeContext:
    given = str(chosen.cluster.get("server") or "")
    hint = "server: https://HOST:PORT"
    try:
        url = urlsplit(given if "://" in given else f"http://{given}")
        named = url.hostname if url.port is None or url.port > 0 else None
    except ValueError as error:
        raise ClusterError(f"context {chosen.name}: its cluster's server is no address", hint=hint) from error
    if url.scheme not in ("http", "https") or not named:
        raise ClusterError(f"context {chosen.name}: its cluster has no server", hint=hint)
    place = url.netloc.rpartition("@")[2]
    server = f"{url.scheme}://{place}{url.path.rstrip('/')}"
    return KubeContext(chosen.name, server, chosen.namespace or "default", chosen.cluster, kube_auth.source(chosen))
