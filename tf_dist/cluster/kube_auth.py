"""Where a kubeconfig's user gets its credentials: a token, a file, a plugin, a provider, a password, a certificate.

Plugins and providers are the ``kubernetes`` package's to run, and only where one is named is it imported.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from tf_dist.cluster import kube_tls
from tf_dist.cluster.credentials import Grant
from tf_dist.cluster.kube_files import Chosen
from tf_dist.cluster.refusals import Unauthorized
from tf_dist.core.times import parse_time
from tf_dist.errors import ClusterError

Source = Callable[[], Grant]

_REREAD: Final = 60.0  # seconds: token files are replaced long before what they held is over
_SHORTEST: Final = 1.0  # seconds that a plugin's answer is used at least, whatever it says


def source(chosen: Chosen) -> Source:
    """What to ask for the credentials of a context's user; asking raises ClusterError when there are none to be had."""
    user = chosen.user
    assumed = _assumed(user)
    ask = _first(chosen)

    def grant() -> Grant:
        found = ask()
        certificate = found.certificate or kube_tls.client_certificate(user)
        return Grant({**found.headers, **assumed}, certificate, found.seconds)

    return grant


def _first(chosen: Chosen) -> Source:
    """The first that is there, in the order in which kubectl takes them."""
    user = chosen.user
    if file := user.get("tokenFile"):
        return token_file(Path(str(file)))
    if token := user.get("token"):
        return lambda: Grant(bearer(str(token), "the kubeconfig's token"))
    if plugin := user.get("exec"):
        return lambda: _plugin(plugin, chosen.cluster)
    if provider := user.get("auth-provider"):
        return lambda: _provider(provider, chosen)
    if user.get("username"):
        return lambda: Grant(basic(str(user["username"]), str(user.get("password") or "")))
    url = urlsplit(str(chosen.cluster.get("server") or ""))
    if url.username:
        return lambda: Grant(basic(unquote(str(url.username)), unquote(url.password or "")))
    return lambda: Grant({})


def bearer(token: str, what: str) -> dict[str, str]:
    """The header of a token; ``what`` names it when it can be none."""
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise Unauthorized(f"{what} is {'empty' if not token else 'no token: it has characters that none may have'}")
    return {"Authorization": f"Bearer {token}"}


def basic(username: str, password: str) -> dict[str, str]:
    """The header of a name and a password."""
    return {"Authorization": f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"}


def token_file(path: Path) -> Source:
    """A token in a file that somebody replaces from time to time."""

    def grant() -> Grant:
        try:
            text = path.read_text()
        except (OSError, ValueError) as error:
            raise Unauthorized(f"cannot read the token in {path}: {error}") from error
        return Grant(bearer(text, f"the token in {path}"), seconds=_REREAD)

    return grant


def _assumed(user: Mapping[str, Any]) -> dict[str, str]:
    """The headers of a user who acts as somebody else."""
    groups = user.get("as-groups") or []
    if len(groups) > 1 or user.get("as-user-extra"):
        # Left out silently, requests would be made with other rights than kubectl's.
        raise ClusterError("the kubeconfig's user has several as-groups or as-user-extra: tf-dist cannot act so")
    wanted = {"Impersonate-User": user.get("as"), "Impersonate-Uid": user.get("as-uid")}
    wanted["Impersonate-Group"] = groups[0] if groups else None
    return {name: str(value) for name, value in wanted.items() if value}


def _plugin(plugin: Mapping[str, Any], cluster: Mapping[str, Any]) -> Grant:
    """What an exec plugin prints."""
    from kubernetes.config.exec_provider import ExecProvider
    from kubernetes.config.kube_config import ConfigNode

    command = plugin.get("command")
    try:
        runner = ExecProvider(ConfigNode("exec", dict(plugin)), "", ConfigNode("cluster", _told(cluster)))
        status = runner.run()
    except OSError as error:
        hint = str(plugin.get("installHint") or "install it, or mend the user's exec section in the kubeconfig").strip()
        raise Unauthorized(f"cannot run the login plugin {command}: {error.strerror or error}", hint=hint) from error
    except Exception as error:
        # Whatever an answer that is none makes of the package; on a terminal the plugin has said why by itself.
        why = "" if isinstance(error, AttributeError) else f": {str(error).removeprefix('exec: ')}"
        hint = "log in again as your provider says, then repeat this"
        raise Unauthorized(f"the login plugin {command} failed{why}", hint=hint) from error
    return _granted(status, f"the login plugin {command}")


def _told(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """The cluster as a plugin that wants to know it is told: without files."""
    told = {key: value for key, value in cluster.items() if key != "certificate-authority"}
    if authority := kube_tls.material(cluster, "certificate-authority"):
        told["certificate-authority-data"] = base64.b64encode(authority).decode()
    return told


def _granted(status: Any, who: str) -> Grant:
    given: Mapping[str, Any] = status if isinstance(status, Mapping) else {}
    token, chain, key = (given.get(name) for name in ("token", "clientCertificateData", "clientKeyData"))
    if not token and not (chain and key):
        raise Unauthorized(f"{who} gave neither a token nor a certificate with its key")
    expiry = parse_time(given.get("expirationTimestamp"))
    return Grant(
        bearer(str(token), f"what {who} gave") if token else {},
        f"{chain}\n{key}".encode() if chain and key else b"",
        None if expiry is None else max(_SHORTEST, expiry - time.time()),
    )


def _provider(provider: Mapping[str, Any], chosen: Chosen) -> Grant:
    """A token by way of what came before plugins: OpenID Connect, and others that the package still knows."""
    import os
    import tempfile

    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException, load_kube_config

    name = provider.get("name")
    configuration = Configuration()
    try:
        with tempfile.TemporaryDirectory(prefix="tf-dist-") as scratch:
            load_kube_config(
                config_file=os.pathsep.join(map(str, chosen.files)),
                context=chosen.name,
                client_configuration=configuration,
                temp_file_path=scratch,
            )
        found = configuration.auth_settings().get("BearerToken") or {}
    except ConfigException as error:
        raise Unauthorized(f"the auth-provider {name} failed: {error}", hint="log in again") from error
    except Exception as error:
        raise Unauthorized(f"the auth-provider {name} failed: {type(error).__name__}: {error}") from error
    value = str(found.get("value") or "")
    if not value:
        hint = "log in again; the way of today is an exec plugin (kubelogin, gke-gcloud-auth-plugin)"
        raise Unauthorized(f"the auth-provider {name} gave no token", hint=hint)
    return Grant(bearer(value.partition(" ")[2] or value, f"what the auth-provider {name} gave"), seconds=_REREAD)
