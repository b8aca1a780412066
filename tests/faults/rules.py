"""What must hold at every moment, whatever breaks: checked against the store and what the hands know to be true."""

from __future__ import annotations

import json
from collections import Counter

from tests.faults.proxy import Kind, Passed
from tests.faults.puppet import Company, Puppet
from tests.faults.site import Site, alive, deleting, label, memory_of, name, owner_uid, replica, uid
from tf_dist.cluster.api import TFJOBS, Object
from tf_dist.core import names
from tf_dist.core.status import FREE

_TERMINAL = ("Completed", "Failed", "Terminated")
_OWNED = frozenset({"pods", "services", "configmaps", "tfjobs/status"})


class Rules:
    """The rules over one site, and the record of its drivers' writes that some of them need."""

    def __init__(self, site: Site, company: Company) -> None:
        self._site = site
        self._company = company
        self.broken: list[str] = []
        self.late = False

    def check(self, puppets: list[Puppet]) -> None:
        """All of them; an AssertionError tells the story so far."""
        try:
            self._check(puppets)
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *self._site.log])) from error

    def _check(self, puppets: list[Puppet]) -> None:
        assert not self.broken, self.broken
        self._one_pod_each()
        self._every_pod_has_an_owner()
        for job in self._site.jobs():
            self._budget(job)
            self._truth(job)
        held = [puppet.number for puppet in puppets if puppet.tenure is not None and puppet.tenure.valid()]
        assert self._company is not Company.REPLICAS or len(held) <= 1, f"{held} hold one Lease at once"

    def _one_pod_each(self) -> None:
        pods = list(alive(self._site.pods()))
        each = Counter((owner_uid(pod), replica(pod), label(pod, names.ATTEMPT)) for pod in pods)
        assert all(count == 1 for count in each.values()), each
        if self.late:
            return  # a request that arrives after its time may bring a pod of an old attempt, which then goes
        each = Counter((owner_uid(pod), replica(pod)) for pod in pods)
        assert all(count == 1 for count in each.values()), f"an old and a new attempt overlap: {each}"

    def _every_pod_has_an_owner(self) -> None:
        jobs = {uid(job) for job in self._site.jobs()}
        orphans = [name(pod) for pod in self._site.pods() if owner_uid(pod) not in jobs and not deleting(pod)]
        assert not orphans, orphans

    def _budget(self, job: Object) -> None:
        memory, limit = memory_of(job), self._site.limits.get(uid(job))
        spent = sum(count for cause, count in (memory.get("restarts") or {}).items() if cause not in FREE)
        disruptions = sum((memory.get("disruptions") or {}).values())
        truth = self._site.truth[uid(job)]
        assert limit is None or spent <= limit, f"{spent} restarts of {limit}"
        assert spent <= len(truth.failed), f"{spent} restarts for {len(truth.failed)} pods that failed"
        counted = f"{spent} restarts and {disruptions} disruptions"
        assert spent + disruptions <= len(truth.bad), f"{counted} for {len(truth.bad)} pods that failed or were taken"

    def _truth(self, job: Object) -> None:
        memory, truth = memory_of(job), self._site.truth[uid(job)]
        true = {one["type"] for one in (job.get("status") or {}).get("conditions") or () if one["status"] == "True"}
        assert not {"Succeeded", "Failed"} <= true
        phase, reason = memory.get("phase"), memory.get("reason", "")
        assert not (phase in _TERMINAL and reason.startswith("Invalid")), f"an edit has ended {name(job)}: {memory}"
        if truth.ended is not None:
            assert truth.ended == (phase, reason), f"{truth.ended} was the end, and now it is {phase} {reason}"
        if phase == "Completing":
            assert "worker-0" in truth.succeeded, memory
        if phase not in _TERMINAL:
            return
        truth.ended = (phase, reason)
        match reason:
            case "JobSucceeded":
                assert phase == "Completed"
                assert "worker-0" in truth.succeeded, memory
            case "BackoffLimitExceeded":
                limit = self._site.limits.get(uid(job))
                assert limit is not None
                assert len(truth.bad) > limit, memory
            case "PodFailed":
                assert truth.failed, memory
            case _:
                raise AssertionError(f"nothing that was done to it explains {phase} {reason}")

    # Who writes

    def told(self, puppet: Puppet, passed: Passed) -> None:
        """A request of a driver that the proxy has passed on; may be called from a thread of the proxy."""
        call = passed.call
        if call.writes:
            self._site.note(_line(puppet, passed))
        if call.resource not in _OWNED or not call.writes or passed.fault is Kind.LATE:
            return  # what comes late was sent in time: the server's fences are for that
        if not puppet.mandate.valid():
            self.broken.append(f"driver {puppet.number} tried to {call} without a mandate")
        if not 200 <= passed.code < 300:
            return
        if self._company is Company.PEERS and call.resource == "pods":
            self._of_its_own(puppet, passed)

    def _of_its_own(self, puppet: Puppet, passed: Passed) -> None:
        """A driver touches pods only of a job that names it."""
        answer = json.loads(passed.answer)
        owners = (answer.get("metadata") or {}).get("ownerReferences") or ()
        for job in self._site.memory.list(TFJOBS).items:
            if any(owner["uid"] == uid(job) for owner in owners):
                driver = memory_of(job).get("driver")
                finished = memory_of(job).get("phase") in _TERMINAL
                if driver != puppet.mandate.ref and not finished:
                    self.broken.append(f"driver {puppet.number} did {passed.call} for a job of {driver}")


def _line(puppet: Puppet, passed: Passed) -> str:
    """A write of a driver, and what a status says with it."""
    call, memory = passed.call, {}
    named = call.name
    if call.resource == "tfjobs/status":
        memory = json.loads(passed.body)["status"].get("tfDist", {})
    elif passed.body:
        named = named or json.loads(passed.body).get("metadata", {}).get("name", "")
    told = {key: memory[key] for key in ("phase", "reason", "restarts", "attempts", "seen") if key in memory}
    fault = f" {passed.fault.name}" if passed.fault else ""
    return f"driver {puppet.number} {call.verb} {call.resource} {named} -> {passed.code}{fault} {told or ''}"
