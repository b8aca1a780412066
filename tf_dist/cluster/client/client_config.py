"""Client configuration: the cluster of flags, $KUBECONFIG, a pod's service account or ~/.kube/config.

This module itself reads files, certificates and tokens. The ``kubernetes`` package (releases 35 to 37) hides why a
plugin failed, never reads a token file again, leaves keys in the temporary folder of a killed process, and takes a
third of a second to import. The package only runs exec plugins and providers; ``RestCluster`` sends the requests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tf_dist.cluster.client import auth, kubeconfig_file
from tf_dist.cluster.client.auth import Credential, RefreshingCredentials
from tf_dist.errors import ClusterError, Unavailable

if TYPE_CHECKING:
    from tf_dist.cluster.client.rest import RestCluster


IN_CLUSTER: Final = "in-cluster"
EMBEDDED_EXTENSION: Final = "tf-dist.dev/embedded"
"""Extension of a kubeconfig: ``addresses`` of an embedded cluster, the path for ``RestCluster.addresses``."""
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
NO_CLUSTER_HINT: Final = (
    "start one on this machine: tf-dist local up; or name one: --kubeconfig FILE, --context NAME, "
    "$KUBECONFIG, ~/.kube/config"
)


_WATCH_SECONDS: Final = 30.0
"""The duration of a watch in a process that follows few jobs. It is short, so that a dropped connection is noticed."""


@dataclass(frozen=True, slots=True)
class KubeContext:
    """A cluster and a user. ``server`` is a URL without secrets; ``namespace`` is never empty."""

    name: str
    server: str
    namespace: str
    trust: Mapping[str, Any]
    source: Callable[[], Credential]

    def cluster(
        self,
        *,
        retries: int = 3,
        timeout: float = 30.0,
        connections: int = 64,
        called: Callable[[str, str, int, float], None] | None = None,
        paced: bool = False,
    ) -> RestCluster:
        """A client; the arguments are ``RestCluster``'s. ClusterError when certificates cannot be read."""
        from tf_dist.cluster.client.rest import RestCluster

        secure = self.server.startswith("https:")
        tls = auth.cluster_tls_context(self.trust) if secure else None
        return RestCluster(
            self.server,
            credentials=RefreshingCredentials(self.source, use=auth.certificate_loader(tls) if tls else lambda _: None),
            ssl_context=tls,
            server_name=str(self.trust.get("tls-server-name") or "") if secure else "",
            proxy=proxy_for(self.server, str(self.trust.get("proxy-url") or "")),
            retries=retries,
            timeout=timeout,
            connections=connections,
            called=called,
            addresses_path=_addresses_path(self.trust),
            paced=paced,
            watch_seconds=290.0 if paced else _WATCH_SECONDS,
        )


def _addresses_path(cluster: Mapping[str, Any]) -> str:
    """The path for real endpoint addresses on an embedded cluster without DNS; "" for every other cluster."""
    for one in cluster.get("extensions") or ():
        match one:
            case {"name": name, "extension": {"addresses": str(path)}} if name == EMBEDDED_EXTENSION:
                return path
    return ""


def load_config(kubeconfig: str | None = None, context: str | None = None) -> KubeContext:
    """The cluster of the arguments, else of $KUBECONFIG, else of this pod, else of ~/.kube/config.

    Unavailable when none is configured; ClusterError with the known names when the named context does not exist.
    """
    if not kubeconfig and not context and not os.environ.get("KUBECONFIG") and (inside := in_cluster_config()):
        return inside
    files = kubeconfig_file.kubeconfig_files(kubeconfig)
    if not files and context:
        what = f"there is no context {context}: no kubeconfig was found"
        raise ClusterError(what, hint="name its file: --kubeconfig FILE, $KUBECONFIG")
    if not files:
        raise Unavailable("no cluster is configured", hint=NO_CLUSTER_HINT)
    return _from_kubeconfig(kubeconfig_file.resolve_context(files, context))


def in_cluster_config(environ: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT) -> KubeContext | None:
    """The cluster of the pod in which this process runs, with its service account; None outside of such a pod."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port or not (folder / "token").is_file():
        return None
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    space = folder / "namespace"
    namespace = space.read_text().strip() if space.is_file() else ""
    trust = {"certificate-authority": str(folder / "ca.crt")}
    return KubeContext(IN_CLUSTER, server, namespace or "default", trust, auth.token_file_source(folder / "token"))


def _from_kubeconfig(chosen: kubeconfig_file.ResolvedContext) -> KubeContext:
    given = str(chosen.cluster.get("server") or "")
    hint = "server: https://HOST:PORT"
    try:
        url = urlsplit(given if "://" in given else f"http://{given}")
        named = url.hostname if url.port is None or url.port > 0 else None
    except ValueError as error:
        raise ClusterError(f"context {chosen.name}: its cluster's server is not an address", hint=hint) from error
    if url.scheme not in ("http", "https") or not named:
        raise ClusterError(f"context {chosen.name}: its cluster has no server", hint=hint)
    place = url.netloc.rpartition("@")[2]
    server = f"{url.scheme}://{place}{url.path.rstrip('/')}"
    return KubeContext(
        chosen.name, server, chosen.namespace or "default", chosen.cluster, auth.credential_source(chosen)
    )


def proxy_for(server: str, given: str = "", environ: Mapping[str, str] = os.environ) -> str:
    """The URL of the proxy for ``server``; "" for none. ``given`` is the kubeconfig's ``proxy-url``."""
    if given:
        return given
    url = urlsplit(server)
    host = url.hostname or ""
    proxy = _env_either_case(environ, f"{url.scheme}_proxy")
    if not proxy or _is_loopback(host) or _matches_no_proxy(host, url.port, _env_either_case(environ, "no_proxy")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _env_either_case(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name) or environ.get(name.upper()) or ""


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _matches_no_proxy(host: str, port: int | None, rules: str) -> bool:
    """Whether ``no_proxy`` names the host: by its name, its domain, its address or network, or by ``*``."""
    for rule in filter(None, (part.strip().lower() for part in rules.split(","))):
        if rule == "*":
            return True
        try:
            if ip_address(host) in ip_network(rule, strict=False):
                return True
        except ValueError:
            pass
        name, _, only = rule.rpartition(":") if rule.rpartition(":")[2].isdecimal() else (rule, "", "")
        domain = name.removeprefix("*").lstrip(".")
        if only in ("", str(port)) and domain and (host == domain or host.endswith(f".{domain}")):
            return True
    return False
