"""Which proxy, if any, stands between us and a server: the kubeconfig's, else the environment's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit


def proxy_of(server: str, given: str = "", environ: Mapping[str, str] = os.environ) -> str:
    """The URL of the proxy for ``server``; "" for none. ``given`` is the kubeconfig's ``proxy-url``."""
    if given:
        return given
    url = urlsplit(server)
    host = url.hostname or ""
    proxy = _either(environ, f"{url.scheme}_proxy")
    if not proxy or _is_loopback(host) or _exempt(host, url.port, _either(environ, "no_proxy")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _either(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name) or environ.get(name.upper()) or ""


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _exempt(host: str, port: int | None, rules: str) -> bool:
    """Whether ``no_proxy`` names the host: as itself, as part of a domain, by its address or network, or by ``*``."""
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
