"""Identity of the Airflow deployment: a name that all of its processes agree on, and no other Airflow has.

It distinguishes jobs (``task_identity``). The first of these that is set:

1. ``[tf_dist] deployment``.
2. ``[api] base_url``, if its host is one in a whole network: no address of this machine, no name without a dot.
3. The file ``tf-dist-deployment`` in the folder of Airflow, if the API server is on this machine: a single host.
4. A fingerprint of ``[core] fernet_key`` from the environment, where a deployment gives the same to all its processes.

Where there is none of them a task is refused: it would take up, and delete, what belongs to another Airflow.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import uuid
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tf_dist.airflow.version_compat import conf
from tf_dist.errors import InvalidJob, Problem

DEPLOYMENT_FILE: Final = "tf-dist-deployment"
_KEY: Final = "AIRFLOW__CORE__FERNET_KEY"
_HERE: Final = ("", "localhost")
_HINT: Final = "set it (AIRFLOW__TF_DIST__DEPLOYMENT) to a name that no other Airflow of this namespace has"


def deployment() -> str:
    """The name of this Airflow; InvalidJob where nothing identifies it."""
    own = _setting("tf_dist", "deployment")
    if own:
        return own
    url = _setting("api", "base_url")
    host, server = _host(url), _host(_setting("core", "execution_api_server_url") or url)
    if not _is_here(host) and _is_known_everywhere(host):
        return _normalized(url)
    if _is_here(host) and _is_here(server):
        return f"home-{_kept(_home() / DEPLOYMENT_FILE)}"
    key = _shared_key()
    if key:
        return f"key-{hmac.new(key.encode(), server.encode(), hashlib.sha256).hexdigest()[:24]}"
    why = "nothing tells this Airflow from another one that has jobs in the same namespace"
    raise InvalidJob([Problem("[tf_dist] deployment", why, _HINT)])


def _setting(section: str, key: str) -> str:
    return str(conf.get(section, key, fallback="") or "").strip()


def _host(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def _normalized(url: str) -> str:
    """One text for all spellings of a URL: its scheme, the case of its host, a usual port, and a last slash are none
    of its identity.
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    try:
        port = parts.port
    except ValueError:
        return url
    shown = f"[{host}]" if ":" in host else host
    place = shown if port in (None, 80, 443) else f"{shown}:{port}"
    return f"https://{place}{parts.path.rstrip('/')}"


def _is_here(host: str) -> bool:
    if host in _HERE or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _is_known_everywhere(host: str) -> bool:
    """A name without a dot is another server in another network, or in another namespace of a cluster."""
    return "." in host.rstrip(".") or ":" in host


def _home() -> Path:
    return Path(os.path.expandvars(os.environ.get("AIRFLOW_HOME") or "~/airflow")).expanduser()


def _kept(path: Path) -> str:
    """The content of the file, which is made where it is missing: once, however many processes begin together."""
    try:
        if not path.exists():
            draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
            draft.write_text(uuid.uuid4().hex, encoding="ascii")
            try:
                path.hardlink_to(draft)
            except FileExistsError:
                pass
            finally:
                draft.unlink()
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        what = (
            f"is not set, and {path}, which would tell this Airflow from another one, cannot be made or read: {error}"
        )
        raise InvalidJob([Problem("[tf_dist] deployment", what, _HINT)]) from None


def _shared_key() -> str:
    """The oldest of the keys, if they come from the environment: one in a file may have been made up on this host."""
    if not any(os.environ.get(f"{_KEY}{way}") for way in ("", "_CMD", "_SECRET")):
        return ""
    return _setting("core", "fernet_key").rpartition(",")[2].strip()
