"""This machine as a node: capacity, GPUs, users, labels, nodeInfo."""

from __future__ import annotations

import os
import platform
import pwd
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tf_dist import __version__
from tf_dist.cluster.api import KUBERNETES_VERSION, Object
from tf_dist.cluster.kubelet.runtime import linux
from tf_dist.core.model import names

_PASSED_VARIABLES = (
    "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH",
    "CUDA_HOME", "CUDA_PATH", "XLA_FLAGS", "TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
)  # fmt: skip


def gpu_indices() -> list[int]:
    """The numbers of the NVIDIA devices of this machine."""
    names = os.listdir("/dev")
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"nvidia([0-9]+)", name)))


def node_capacity(overrides: Mapping[str, str]) -> dict[str, str]:
    """CPUs, memory, disk, pods and GPUs, unless ``overrides`` replaces them."""
    disk = shutil.disk_usage(tempfile.gettempdir()).total
    found = {"cpu": str(_cpus()), "memory": f"{_memory() >> 10}Ki", "ephemeral-storage": str(disk), "pods": "110"}
    if devices := gpu_indices():
        found[GPU_RESOURCE] = str(len(devices))
    return found | {key: str(value) for key, value in overrides.items()}


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def base_env(environ: Mapping[str, str], marks: Mapping[str, str]) -> dict[str, str]:
    """A clean environment in which ``python`` is the interpreter that runs tf-dist."""
    folder = str(Path(sys.executable).parent)
    env = {name: environ[name] for name in _PASSED_VARIABLES if name in environ}
    env["PATH"] = os.pathsep.join([folder, *(environ.get("PATH") or os.defpath).split(os.pathsep)])
    env["PYTHONUNBUFFERED"] = "1"
    if sys.prefix != sys.base_prefix:
        env["VIRTUAL_ENV"] = sys.prefix
    return env | dict(marks)


def node_features(*, isolated: bool, enforced: Iterable[str] = ()) -> NodeFeatures:
    """The features of a node with the rights of this process."""
    root = os.geteuid() == 0
    # Without the right to create namespaces, the supervisor creates a user namespace, which has only one user.
    alone = isolated and root and not linux.has_sys_admin()
    return NodeFeatures(
        uid=os.geteuid(),
        gid=os.getegid(),
        switch=root and not alone and linux.may_switch_users(),
        drop=root and (alone or linux.may_drop_capabilities()),
        isolated=isolated,
        enforced=frozenset(enforced),
    )


def find_user(uid: int) -> Account | None:
    """An account of this machine by its number."""
    try:
        found = pwd.getpwuid(uid)
    except (KeyError, OverflowError):
        return None
    return Account(found.pw_name, found.pw_gid, found.pw_dir)


def host_ip() -> str:
    """The address at which other machines reach this machine; 127.0.0.1 without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address: nothing is sent
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def label_safe(text: str) -> str:
    """A label value made of ``text``."""
    return re.sub(r"[^-A-Za-z0-9_.]", "-", text)[:63].strip("-_.")


def node_labels(name: str) -> dict[str, str]:
    """Kubernetes' well-known labels of every node."""
    return {
        "kubernetes.io/hostname": label_safe(name),
        names.EMULATED: "true",
        "kubernetes.io/os": platform.system().lower(),
        "kubernetes.io/arch": _architecture(),
    }


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def node_info() -> Object:
    """The Node's ``nodeInfo``."""
    return {
        "machineID": "",
        "systemUUID": "",
        "bootID": "",
        "kernelVersion": platform.release(),
        "osImage": platform.platform(terse=True),
        "containerRuntimeVersion": f"tf-dist://{__version__}",
        "kubeletVersion": KUBERNETES_VERSION,
        "kubeProxyVersion": "",
        "operatingSystem": platform.system().lower(),
        "architecture": _architecture(),
    }


GPU_RESOURCE = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class NodeFeatures:
    """The features of this node: its user, whether it may become other users (``switch``), drop capabilities (``drop``)
    and separate file systems (``isolated``), and the resources whose limits it enforces.
    """

    uid: int = 1000
    gid: int = 1000
    switch: bool = False
    drop: bool = False
    isolated: bool = False
    enforced: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Account:
    """An account of this machine."""

    name: str
    gid: int
    home: str
