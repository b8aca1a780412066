"""EmbeddedCluster: store, API server, scheduler, kubelet and controller in this process, started as one."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from tf_dist.cluster.api import JOB_KINDS, NAMESPACES, QUEUES, TFJOBS, VOLCANO_JOBS, Object
from tf_dist.cluster.apiserver.port_allocator import PortAllocator
from tf_dist.cluster.apiserver.scheduler import Scheduler
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.concurrency import Service
from tf_dist.cluster.kubelet.kubelet import Kubelet
from tf_dist.cluster.kubelet.node.node_settings import NetworkDescription, NetworkMode, NodeSettings
from tf_dist.cluster.lease import system_namespace
from tf_dist.controller.controller import Controller
from tf_dist.controller.leader_election import LeaseLeadership
from tf_dist.controller.settings import ControllerSettings
from tf_dist.core.dialects import read, update_problems
from tf_dist.core.dialects.queue_resource import parse_queue
from tf_dist.core.reconciler.accepted_spec import all_problems
from tf_dist.errors import AlreadyExists, ClusterError, InvalidJob

# The controller never ends before its API server, so the Lease lasts long and its holder has a fixed name.
_IDENTITY: Final = "embedded"
_LEASE_DURATION: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedSettings(NodeSettings):
    """Settings of an embedded cluster: those of its node, its store, its API server and its controller.

    ``durable``: the store is a file in ``state_dir``. ``serve``: an API server listens on loopback, at ``port`` if that
    port is free (0: any port). Each start creates a new token.
    """

    durable: bool = False
    serve: bool = True
    port: int = 0


class EmbeddedCluster(Service):
    """The parts of a cluster on this machine. Use it as a context manager, or ``start`` and ``stop``."""

    def __init__(self, settings: EmbeddedSettings | None = None) -> None:
        self.settings = settings or EmbeddedSettings()
        self._stack = ExitStack()
        self._kill = True
        self.url = ""
        self.token = ""

    def start(self) -> Self:
        """Start all parts. If a part cannot start, stop the parts before it and raise ClusterError with the reason."""
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def _start(self, stack: ExitStack) -> None:
        settings = self.settings
        journal = None
        if settings.durable:
            from tf_dist.cluster.apiserver.storage.sqlite import SqliteJournal

            journal = SqliteJournal(settings.state_dir / "cluster.sqlite")
        self.cluster = stack.enter_context(
            MemoryCluster(journal=journal, validators=ADMISSION_VALIDATORS, any_priority_class=True)
        )
        folder = settings.state_dir / "node" if settings.durable else settings.state_dir
        self.node = Kubelet(self.cluster, settings=replace(settings, state_dir=folder))
        self.node.start()
        stack.callback(lambda: self.node.stop(kill=self._kill))
        self.cluster.log_source = self.node.logs
        if self.network.mode is NetworkMode.SHARED:
            self.cluster.endpoint_resolver = PortAllocator(self.cluster).addresses
        scheduler = Scheduler(self.cluster)
        scheduler.start()
        stack.callback(scheduler.stop)
        self._start_controller(stack)
        if settings.serve:
            self._serve(stack)

    def _start_controller(self, stack: ExitStack) -> None:
        """The controller holds the Lease of the cluster, so that other programs do not become leader."""
        system = system_namespace()
        with suppress(AlreadyExists):
            self.cluster.create(NAMESPACES, None, {"metadata": {"name": system}})
        leadership = LeaseLeadership(
            self.cluster,
            JOB_KINDS,
            None,
            system=system,
            identity=_IDENTITY,
            duration=_LEASE_DURATION,
            renew_every=_LEASE_DURATION / 3,
        )
        leadership.step()
        leadership.start()
        stack.callback(leadership.stop)
        alone = ControllerSettings(other_schedulers=False)
        controller = Controller(self.cluster, settings=alone, leadership=leadership)
        controller.start()
        stack.callback(controller.stop)

    def _serve(self, stack: ExitStack) -> None:
        from tf_dist.cluster.apiserver.server import ApiServer  # imported late: tf-dist run does not serve

        server = ApiServer(self.cluster, port=self.settings.port)
        try:
            self.url = server.start()
        except ClusterError:
            if self.settings.port == 0:
                raise
            # Another process uses the previous port.
            server = ApiServer(self.cluster)
            self.url = server.start()
        stack.callback(server.stop)
        self.token = server.token

    def stop(self, *, kill: bool = True) -> None:
        """Stop all parts. With ``kill``, also end the pods. Otherwise the pods of a durable cluster continue."""
        self._kill = kill
        self._stack.close()

    @property
    def network(self) -> NetworkDescription:
        """The network mode of the pods, and the reason for it."""
        return self.node.network

    def kubeconfig(self) -> dict[str, Any]:
        """The kubeconfig of this cluster."""
        from tf_dist.cluster.apiserver.handlers import ADDRESSES_PATH
        from tf_dist.cluster.apiserver.server import make_kubeconfig

        shared = self.network.mode is NetworkMode.SHARED
        return make_kubeconfig(self.url, self.token, addresses_path=ADDRESSES_PATH if shared else "")


def _validate(document: Object, old: Object | None) -> Object:
    """The validating webhook of the embedded cluster. Refuses invalid jobs with all problems.

    It also refuses updates of immutable fields.
    """
    try:
        read(document)
    except InvalidJob as first:
        raise all_problems(document, first) from None
    if old is not None and (problems := update_problems(old, document)):
        raise InvalidJob(problems)
    return document


def _validate_queue(document: Object, _: Object | None) -> Object:
    """The validating webhook for queues. Refuses unknown keys."""
    parse_queue(document)
    return document


ADMISSION_VALIDATORS: Mapping[tuple[str, str], Callable[[Object, Object | None], Object]] = {
    (TFJOBS.group, TFJOBS.kind): _validate,
    (VOLCANO_JOBS.group, VOLCANO_JOBS.kind): _validate,
    (QUEUES.group, QUEUES.kind): _validate_queue,
}


def write_private_json(document: Mapping[str, Any], path: Path) -> None:
    """Write a file atomically. Only its owner may read it."""
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=2) + "\n")
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
