"""Credentials and TLS of a kubeconfig's user: tokens, exec plugins, client certificates, and their refresh.

The package ``kubernetes`` runs plugins and providers. It is imported only if a kubeconfig uses them.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from tf_dist.cluster.api_errors import Unauthorized
from tf_dist.cluster.client.kubeconfig_file import ResolvedContext
from tf_dist.core.model.timestamps import parse_time
from tf_dist.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Credential:
    """Credentials. ``seconds``: the duration of their validity (None: until they are refused).

    ``certificate``: chain and key of a client, in PEM.
    """

    headers: Mapping[str, str]
    certificate: bytes = b""
    seconds: float | None = None


class RefreshingCredentials:
    """Credentials of ``RestCluster`` from a ``source``, renewed after they expire or are refused. Thread-safe.

    ``use`` receives each new client certificate, for later handshakes.
    """

    def __init__(
        self,
        source: Callable[[], Credential],
        *,
        use: Callable[[bytes], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._use = use
        self._clock = clock
        self._lock = threading.Lock()
        self._held: tuple[Credential, float | None] | None = None  # with the time at which it expires

    def headers(self) -> Mapping[str, str]:
        """The headers to send now; ClusterError when there are none."""
        grant = self._good()
        if grant is None:
            with self._lock:  # one thread reads the source, the others wait for its result
                grant = self._good() or self._ask()
        return grant.headers

    def renew(self, rejected: Mapping[str, str]) -> bool:
        """Read the source again, unless another thread has done so since ``rejected`` was returned.

        False if there are no newer credentials, so that a retry is useless.
        """
        with self._lock:
            before = self._held[0] if self._held else None
            if before is None or before.headers is not rejected:
                return True
            after = self._ask()
            return (after.headers, after.certificate) != (before.headers, before.certificate)

    def _good(self) -> Credential | None:
        if self._held is None:
            return None
        grant, until = self._held
        return grant if until is None or self._clock() < until else None

    def _ask(self) -> Credential:
        grant = self._source()
        if grant.certificate and (self._held is None or grant.certificate != self._held[0].certificate):
            self._use(grant.certificate)
        self._held = grant, None if grant.seconds is None else self._clock() + grant.seconds
        return grant


def cluster_tls_context(cluster: Mapping[str, Any]) -> ssl.SSLContext:
    """A context that trusts the cluster's authority (default: the system's); ClusterError when it cannot be read."""
    authority = data_or_file(cluster, "certificate-authority")
    if cluster.get("insecure-skip-tls-verify"):
        # The kubeconfig requests this. Unlike a default context, this context does not read the system's authorities.
        unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unverified.check_hostname = False
        unverified.verify_mode = ssl.CERT_NONE
        return unverified
    try:
        trusted = ssl.create_default_context(cadata=authority.decode("latin-1") if authority else None)
    except (ssl.SSLError, TypeError) as error:  # TypeError: it is not ASCII
        why = getattr(error, "reason", "") or error
        raise ClusterError(f"certificate-authority: {why}", hint="it must be certificates in PEM") from error
    if authority:
        # Authorities of clusters are often made by hand. Go is more lenient than OpenSSL's strict mode, and accepts any
        # certificate of the file as a trust anchor.
        trusted.verify_flags &= ~ssl.VERIFY_X509_STRICT
        trusted.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return trusted


def client_certificate(user: Mapping[str, Any]) -> bytes:
    """Chain and key of the user, as one PEM text; empty if the user has none."""
    chain, key = data_or_file(user, "client-certificate"), data_or_file(user, "client-key")
    if bool(chain) != bool(key):
        missing = "client-key" if chain else "client-certificate"
        raise ClusterError(f"the kubeconfig's user has no {missing}", hint="give both a certificate and its key")
    return chain + b"\n" + key if chain else b""


def data_or_file(section: Mapping[str, Any], field: str) -> bytes:
    """The contents of ``FIELD-data`` (base64), else of the file that ``FIELD`` names; ClusterError."""
    if data := section.get(f"{field}-data"):
        try:
            return base64.b64decode("".join(str(data).split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise ClusterError(f"the kubeconfig's {field}-data is not base64") from error
    if not (named := section.get(field)):
        return b""
    try:
        return Path(str(named)).read_bytes()
    except OSError as error:
        raise ClusterError(f"cannot read the kubeconfig's {field} {named}: {error.strerror}") from error


def certificate_loader(trusted: ssl.SSLContext) -> Callable[[bytes], None]:
    """A function that sets the client certificate (chain and key in PEM) for later handshakes; ClusterError."""

    def use(pem: bytes) -> None:
        with _temporary_file(pem) as path:
            try:
                # Without a password, OpenSSL would prompt for one on the terminal.
                trusted.load_cert_chain(path, password="")
            except (ssl.SSLError, OSError, ValueError) as error:
                reason = getattr(error, "reason", None) or error
                hint = "they must belong together, be in PEM, and the key must not be encrypted"
                raise ClusterError(f"client certificate and key: {reason}", hint=hint) from error

    return use


@contextmanager
def _temporary_file(data: bytes) -> Iterator[str]:
    """The name of a file with this content. OpenSSL reads keys only from files."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("tf-dist")
        with os.fdopen(descriptor, "wb") as memory:
            memory.write(data)
            memory.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    with tempfile.NamedTemporaryFile(prefix="tf-dist-") as scratch:
        scratch.write(data)
        scratch.flush()
        yield scratch.name


CredentialSource = Callable[[], Credential]

_TOKEN_REFRESH: Final = 60.0  # seconds; token files are replaced long before the old token expires
_MIN_LIFETIME: Final = 1.0  # seconds for which a plugin's output is used, even if it expires sooner


def credential_source(chosen: ResolvedContext) -> CredentialSource:
    """The source of credentials of a context's user. The source raises ClusterError when it has none."""
    user = chosen.user
    assumed = _impersonation_headers(user)
    ask = _first_source(chosen)

    def grant() -> Credential:
        found = ask()
        certificate = found.certificate or client_certificate(user)
        return Credential({**found.headers, **assumed}, certificate, found.seconds)

    return grant


def _first_source(chosen: ResolvedContext) -> CredentialSource:
    """The first source that is configured, in kubectl's order of precedence."""
    user = chosen.user
    if file := user.get("tokenFile"):
        return token_file_source(Path(str(file)))
    if token := user.get("token"):
        return lambda: Credential(bearer_header(str(token), "the kubeconfig's token"))
    if plugin := user.get("exec"):
        return lambda: _exec_plugin(plugin, chosen.cluster)
    if provider := user.get("auth-provider"):
        return lambda: _auth_provider(provider, chosen)
    if user.get("username"):
        return lambda: Credential(basic_header(str(user["username"]), str(user.get("password") or "")))
    url = urlsplit(str(chosen.cluster.get("server") or ""))
    if url.username:
        return lambda: Credential(basic_header(unquote(str(url.username)), unquote(url.password or "")))
    return lambda: Credential({})


def bearer_header(token: str, what: str) -> dict[str, str]:
    """The header of a token. Errors call the token ``what``."""
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise Unauthorized(
            f"{what} is {'empty' if not token else 'not a token: it has characters that tokens cannot have'}"
        )
    return {"Authorization": f"Bearer {token}"}


def basic_header(username: str, password: str) -> dict[str, str]:
    """The header of a name and a password."""
    return {"Authorization": f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"}


def token_file_source(path: Path) -> CredentialSource:
    """A token in a file that is replaced from time to time."""

    def grant() -> Credential:
        try:
            text = path.read_text()
        except (OSError, ValueError) as error:
            raise Unauthorized(f"cannot read the token in {path}: {error}") from error
        return Credential(bearer_header(text, f"the token in {path}"), seconds=_TOKEN_REFRESH)

    return grant


def _impersonation_headers(user: Mapping[str, Any]) -> dict[str, str]:
    """The headers of a user who impersonates another."""
    groups = user.get("as-groups") or []
    if len(groups) > 1 or user.get("as-user-extra"):
        # If these were ignored, requests would have other rights than kubectl's.
        raise ClusterError(
            "the kubeconfig's user has several as-groups or as-user-extra, which tf-dist does not support"
        )
    wanted = {"Impersonate-User": user.get("as"), "Impersonate-Uid": user.get("as-uid")}
    wanted["Impersonate-Group"] = groups[0] if groups else None
    return {name: str(value) for name, value in wanted.items() if value}


@contextmanager
def _official_client(what: str) -> Iterator[None]:
    """Wraps imports of the official client. It is an extra, because it is larger than all other dependencies
    together.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        hint = "pip install kubernetes; in a container, give it a token or the pod's service account"
        raise Unauthorized(f"{what} needs the package kubernetes, which is not installed", hint=hint) from error


def _exec_plugin(plugin: Mapping[str, Any], cluster: Mapping[str, Any]) -> Credential:
    """The credentials that an exec plugin prints."""
    command = plugin.get("command")
    with _official_client(f"the login plugin {command}"):
        from kubernetes.config.exec_provider import ExecProvider
        from kubernetes.config.kube_config import ConfigNode
    try:
        runner = ExecProvider(ConfigNode("exec", dict(plugin)), "", ConfigNode("cluster", _exec_cluster_info(cluster)))
        status = runner.run()
    except OSError as error:
        hint = str(
            plugin.get("installHint") or "install it, or correct the user's exec section in the kubeconfig"
        ).strip()
        raise Unauthorized(f"cannot run the login plugin {command}: {error.strerror or error}", hint=hint) from error
    except Exception as error:
        # Malformed output may cause any error in the package. On a terminal, the plugin itself has printed the reason.
        why = "" if isinstance(error, AttributeError) else f": {str(error).removeprefix('exec: ')}"
        hint = "log in again as your provider describes, then repeat the command"
        raise Unauthorized(f"the login plugin {command} failed{why}", hint=hint) from error
    return _exec_credential(status, f"the login plugin {command}")


def _exec_cluster_info(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """The cluster in the form that exec plugins receive: data instead of files."""
    told = {key: value for key, value in cluster.items() if key != "certificate-authority"}
    if authority := data_or_file(cluster, "certificate-authority"):
        told["certificate-authority-data"] = base64.b64encode(authority).decode()
    return told


def _exec_credential(status: Any, who: str) -> Credential:
    given: Mapping[str, Any] = status if isinstance(status, Mapping) else {}
    token, chain, key = (given.get(name) for name in ("token", "clientCertificateData", "clientKeyData"))
    if not token and not (chain and key):
        raise Unauthorized(f"{who} gave neither a token nor a certificate with its key")
    expiry = parse_time(given.get("expirationTimestamp"))
    return Credential(
        bearer_header(str(token), f"what {who} gave") if token else {},
        f"{chain}\n{key}".encode() if chain and key else b"",
        None if expiry is None else max(_MIN_LIFETIME, expiry - time.time()),
    )


def _auth_provider(provider: Mapping[str, Any], chosen: ResolvedContext) -> Credential:
    """A token of a legacy auth-provider: OpenID Connect, or another one that the package still supports."""
    name = provider.get("name")
    with _official_client(f"the auth-provider {name}"):
        from kubernetes.client import Configuration
        from kubernetes.config import ConfigException, load_kube_config
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
        hint = "log in again, or replace it by an exec plugin (kubelogin, gke-gcloud-auth-plugin)"
        raise Unauthorized(f"the auth-provider {name} gave no token", hint=hint)
    return Credential(
        bearer_header(value.partition(" ")[2] or value, f"what the auth-provider {name} gave"), seconds=_TOKEN_REFRESH
    )
