"""Which Airflow this is: the setting ``[tf_dist] deployment``, by default Airflow's address (``[api] base_url``).

It distinguishes jobs (``task_identity``): all processes of one Airflow compute the same name, and no other Airflow
does. On a single machine, whose address is empty or ``localhost``, a name that is kept in the folder of Airflow
replaces the address. Everywhere else tasks are refused until the setting is given: they would adopt, and delete, the
jobs of another Airflow.
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
    """The name of this Airflow; InvalidJob where nothing identifies it."""
    own, address = _address("tf_dist", "deployment"), _address("api", "base_url")
    if own:
        return own
    if _is_local(address) and _is_local(_address("core", "execution_api_server_url") or address):
        return f"home-{_kept_name()}"
    host = _host(address)
    # A host without a dot is another server in another network, or in another namespace of a cluster.
    if _is_local(address) or not ("." in host or ":" in host):
        what = "is not set, and no address in [api] base_url distinguishes this Airflow from others in the namespace"
        raise InvalidJob([Problem("[tf_dist] deployment", what, _HINT)])
    return address


def _address(section: str, key: str) -> str:
    """A setting without what does not make another address: scheme, user, case, usual port, last slash."""
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
    """Whether only this machine reaches its server there."""
    host = _host(address)
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host in ("", "localhost") or host.endswith(".localhost")
    return found.is_loopback or found.is_unspecified


def _kept_name() -> str:
    """The content of a file, which is made where it is missing: once, however many processes begin together."""
    home = os.path.expandvars(os.environ.get("AIRFLOW_HOME") or "~/airflow")
    path = Path(home).expanduser() / DEPLOYMENT_FILE
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
