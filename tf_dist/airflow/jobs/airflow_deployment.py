"""The name of this Airflow deployment: the setting ``[tf_dist] deployment``, by default ``[api] base_url``.

The name distinguishes the jobs of several deployments (``task_identity``). All processes of a deployment compute the
same name. On a single machine, where the address is empty or ``localhost``, a name stored in ``AIRFLOW_HOME`` replaces
it. If nothing identifies the deployment, tasks are refused, because they could adopt or delete jobs of another Airflow.
"""

from __future__ import annotations

import ipaddress
import os
import uuid
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tf_dist.airflow.version_compat import conf
from tf_dist.errors import InvalidJob, Problem

DEPLOYMENT_FILE: Final = "tf-dist-deployment"
_HINT: Final = "set it (AIRFLOW__TF_DIST__DEPLOYMENT) to a name that no other Airflow of this namespace has"


def deployment() -> str:
    """The name of this Airflow deployment. Raises InvalidJob if nothing identifies it."""
    own, address = _address("tf_dist", "deployment"), _address("api", "base_url")
    if own:
        return own
    if _is_local(address) and _is_local(_address("core", "execution_api_server_url") or address):
        return f"home-{_kept_name()}"
    host = _host(address)
    # In another network, or in another namespace of a cluster, a host name without a dot may be another server.
    if _is_local(address) or not ("." in host or ":" in host):
        what = "is not set, and no address in [api] base_url distinguishes this Airflow from others in the namespace"
        raise InvalidJob([Problem("[tf_dist] deployment", what, _HINT)])
    return address


def _address(section: str, key: str) -> str:
    """A setting, normalised: in lower case, without scheme, user, default port and final slash."""
    text = str(conf.get(section, key, fallback="") or "").strip().lower()
    place, slash, path = text.rpartition("://")[2].partition("/")
    host = place.rpartition("@")[2].removesuffix(":80").removesuffix(":443").rstrip(".")
    return f"{host}{slash}{path}".rstrip("/")


def _host(address: str) -> str:
    try:
        return urlsplit(f"//{address}").hostname or ""
    except ValueError:
        return ""


def _is_local(address: str) -> bool:
    """Whether the address is reachable only from this machine."""
    host = _host(address)
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host in ("", "localhost") or host.endswith(".localhost")
    return found.is_loopback or found.is_unspecified


def _kept_name() -> str:
    """The content of a file that is created only once, even if several processes start together."""
    home = os.path.expandvars(os.environ.get("AIRFLOW_HOME") or "~/airflow")
    path = Path(os.path.expanduser(home)) / DEPLOYMENT_FILE
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
        what = f"is not set, and {path}, which would identify this Airflow instead, cannot be made or read: {error}"
        raise InvalidJob([Problem("[tf_dist] deployment", what, _HINT)]) from None
