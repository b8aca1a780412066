"""etcd, an API server and a controller manager on loopback; who asked for what, from the API server's audit log."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.measure import cpu_seconds, until
from tf_dist.cluster.client.client_config import load_config
from tf_dist.cluster.client.rest import RestCluster

VARIABLE: Final = "TF_DIST_KUBERNETES_BINARIES"
"""Names the folder with kube-apiserver and kube-controller-manager."""
LOAD, DECIDER, JOB_CONTROLLER = "load", "decider", "job-controller"
"""The users of the API server: this benchmark, the system that is measured, and the controller manager."""
_USERS: Final = (LOAD, DECIDER, JOB_CONTROLLER)
# Older ones have other names of controllers, and a port that only one controller manager of a machine can have.
_OLDEST: Final = (1, 28)
# No kubelet reports for the nodes here, so nothing may judge them by that.
_CONTROLLERS: Final = "*,-node-lifecycle-controller,-node-ipam-controller,-service-lb-controller,-node-route-controller"
_AUDIT_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "resources": [{"group": "coordination.k8s.io"}]},
        {"level": "Metadata", "users": [DECIDER, JOB_CONTROLLER]},
    ],
}


def binaries() -> Path:
    """The folder with the Kubernetes binaries; FileNotFoundError says how to get one."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tf-dist-control-plane"
    built = {tuple(map(int, folder.name.split("."))): folder for folder in cache.glob("1.*")}
    recent = [built[version] for version in sorted(built, reverse=True) if version >= _OLDEST]
    for folder in [Path(os.environ[VARIABLE])] if VARIABLE in os.environ else recent:
        if (folder / "kube-apiserver").exists() and (folder / "kube-controller-manager").exists():
            return folder
    raise FileNotFoundError(
        f"no kube-apiserver and kube-controller-manager: build them with ../shared/control-plane/cluster build, "
        f"or set {VARIABLE} to their folder"
    )


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def process(command: Sequence[str | Path], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose output goes to ``log``. SIGTERM ends it, also when this process is killed (on Linux)."""
    if setpriv := shutil.which("setpriv"):
        command = [setpriv, "--pdeathsig", "TERM", *command]
    with log.open("wb") as file:
        started = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, **environment})
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


class Servers:
    """A control plane whose files are in ``folder``. Pods stay unbound: there is no scheduler."""

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        self.folder = folder
        self._options = options  # of the API server
        self._tokens = {user: secrets.token_hex(16) for user in _USERS}
        self._url = f"https://127.0.0.1:{free_port()}"
        self._stack = ExitStack()
        self._manager: subprocess.Popen[bytes] | None = None
        self._read = 0  # bytes of the audit log
        self._requests: dict[str, Counter[str]] = {user: Counter() for user in _USERS}

    def __enter__(self) -> Servers:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        folder, found = self.folder, binaries()
        etcd, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        (folder / "audit.json").write_text(json.dumps(_AUDIT_POLICY))
        lines = [f'{token},{user},{user},"system:masters"\n' for user, token in self._tokens.items()]
        (folder / "tokens.csv").write_text("".join(lines))
        key = folder / "service-account.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        self._run("etcd", shutil.which("etcd") or found / "etcd", "--unsafe-no-fsync", f"--data-dir={folder / 'etcd'}",
                  f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}", f"--listen-peer-urls={peer}",
                  f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}")  # fmt: skip
        self._run("kube-apiserver", found / "kube-apiserver", f"--etcd-servers={etcd}", "--bind-address=127.0.0.1",
                  f"--secure-port={self._url.rpartition(':')[2]}", f"--cert-dir={folder / 'certificates'}",
                  "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC",
                  f"--token-auth-file={folder / 'tokens.csv'}", f"--service-account-key-file={key}",
                  f"--service-account-signing-key-file={key}", "--service-account-issuer=https://kubernetes.default.svc",
                  "--disable-admission-plugins=TaintNodesByCondition", f"--audit-policy-file={folder / 'audit.json'}",
                  f"--audit-log-path={folder / 'audit.log'}", *self._options)  # fmt: skip
        until(self._ready, 120)
        self._manager = self._run(
            "kube-controller-manager", found / "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig(JOB_CONTROLLER)}", "--leader-elect=false",
            "--bind-address=127.0.0.1", f"--secure-port={free_port()}",
            f"--service-account-private-key-file={key}", f"--controllers={_CONTROLLERS}",
            # Its default of 20 requests a second would be all that is measured.
            "--kube-api-qps=5000", "--kube-api-burst=5000",
        )  # fmt: skip

    def _ready(self) -> bool:
        """Whether the API server is; the controller manager ends where it is not."""
        trust = ssl._create_unverified_context()  # its certificate is its own, and it is on loopback
        headers = {"Authorization": f"Bearer {self._tokens[LOAD]}"}
        try:
            request = urllib.request.Request(f"{self._url}/readyz", headers=headers)
            with urllib.request.urlopen(request, timeout=5, context=trust):
                return True
        except OSError:
            return False

    def _run(self, name: str, *command: str | Path) -> subprocess.Popen[bytes]:
        return self._stack.enter_context(process(command, self.folder / f"{name}.log"))

    def kubeconfig(self, user: str) -> Path:
        """The file with which ``user`` connects."""
        # The API server made it, and what signed it, for itself.
        server = {"server": self._url, "certificate-authority": str(self.folder / "certificates" / "apiserver.crt")}
        file = self.folder / f"{user}.kubeconfig"
        file.touch(mode=0o600)
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": user,
            "clusters": [{"name": user, "cluster": server}],
            "users": [{"name": user, "user": {"token": self._tokens[user]}}],
            "contexts": [{"name": user, "context": {"cluster": user, "user": user}}],
        }
        file.write_text(json.dumps(document))
        return file

    def cluster(self) -> RestCluster:
        """A client of the user ``load``."""
        return load_config(str(self.kubeconfig(LOAD))).cluster(connections=32)

    def job_controller_cpu(self) -> float:
        """Processor seconds of the controller manager so far."""
        return cpu_seconds(self._manager.pid) if self._manager else 0.0

    def requests(self, *users: str) -> int:
        """How many requests these users have made so far, without Leases and watches."""
        with (self.folder / "audit.log").open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                event = json.loads(line)
                self._requests[event["user"]["username"]][event["verb"]] += 1
        return sum(count for user in users for verb, count in self._requests[user].items() if verb != "watch")
