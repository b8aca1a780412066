"""Record all requests to a server in the order of their answers, and compare them with a golden file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import unified_diff
from itertools import groupby
from pathlib import Path

import pytest

from tests.faults.calls import Call
from tf_dist.cluster.apiserver.handlers import Router
from tf_dist.cluster.apiserver.requests import Request, Response, StreamResponse
from tf_dist.cluster.apiserver.server import ApiServer
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster

GOLDEN = Path(__file__).parent / "golden"
_UPDATE = "TF_DIST_UPDATE_GOLDEN"
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class RecordingApp(Router):
    """A router that records its requests, and each write as a line."""

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(cluster)
        self.calls: list[Call] = []
        self.writes: list[str] = []

    def handle(self, request: Request) -> Response | StreamResponse:
        reply = super().handle(request)
        call = Call.of(request.method, request.path, request.query)
        self.calls.append(call)
        if call.writes:
            code = reply.code if isinstance(reply, Response) else 200
            self.writes.append(_line(call, request.body, code))
        return reply

    def asked(self, verb: str) -> set[str]:
        """The resources of all requests with this verb."""
        return {call.resource for call in list(self.calls) if call.verb == verb}

    def take(self) -> list[str]:
        """The writes since the last call of this method, in the format of golden files."""
        taken, self.writes = self.writes, []
        return normalised(taken)


@contextmanager
def recording(memory: MemoryCluster) -> Iterator[tuple[ApiServer, RecordingApp]]:
    """A recording server of ``memory``."""
    server = ApiServer(memory)
    server.app = app = RecordingApp(memory)
    with server:
        yield server, app


def _line(call: Call, body: bytes, code: int) -> str:
    """A line like ``create pods mnist-worker-0``. An event shows its reason, and a status the phase of the job."""
    document = json.loads(body) if body else {}
    what = call.name or (document.get("metadata") or {}).get("name", "")
    match call.resource:
        case "events":
            what = str(document.get("reason") or "(counted)")
        case "tfjobs/status" if memory := (document.get("status") or {}).get("tfDist"):
            what = f"{what} {memory.get('phase')} {memory.get('reason', '')}".rstrip()
    return f"{call.verb} {call.resource} {what}" + (f" -> {code}" if code >= 300 else "")


def normalised(lines: Iterable[str]) -> list[str]:
    """The lines without uids. Successive creations of the same kind are sorted, because their order varies."""
    plain = [_UID.sub("UID", line) for line in lines]
    return [line for _, group in groupby(plain, key=_family) for line in sorted(group)]


def _family(line: str) -> tuple[str, ...]:
    verb, resource, *_ = line.split()
    return (verb, resource) if verb in ("create", "delete") and resource != "events" else (line,)


def compare(name: str, chapters: dict[str, list[str]]) -> None:
    """Fail if golden/NAME.txt has other contents. If TF_DIST_UPDATE_GOLDEN is set, write the file instead."""
    text = "".join(f"# {title}\n" + "".join(f"{line}\n" for line in lines) for title, lines in chapters.items())
    file = GOLDEN / f"{name}.txt"
    if os.environ.get(_UPDATE):
        file.write_text(text)
        pytest.skip(f"{file.name} was written anew: {_UPDATE} is set")
    changes = list(unified_diff(file.read_text().splitlines(), text.splitlines(), file.name, "now", lineterm="", n=1))
    if changes:
        pytest.fail("\n".join([*changes, f"if that is right, set {_UPDATE}=1 once"]), pytrace=False)
