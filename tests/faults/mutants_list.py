"""Defects that the fault machine must notice: plausible mistakes of an engineer, and their effects on users.

``old`` must be in the file exactly once. A mutant that no longer applies is corrected together with the code
(``test_mutants``). A mutant without a visible effect is replaced by another mutant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Mutant:
    """Replaces ``old`` by ``new`` in ``file``, a path in ``tf_dist``. ``means`` is the effect on users."""

    name: str
    file: str
    old: str
    new: str
    means: str


MUTANTS: Final = (
    # What wakes the loop
    Mutant(
        "node-bell",
        "controller/informers/informer_set.py",
        "        if not transforms.same_but_version(old, new):\n            self._on_capacity_freed()",
        "        if old is None:\n            self._on_capacity_freed()",
        "a gang waits though its node is ready again",
    ),
    Mutant(
        "stake-bell",
        "controller/controller.py",
        "changed = (before.admission_inputs if before else ()) != (after.admission_inputs if after else ())",
        "changed = before is None or after is None",
        "a gang waits beside the place that a job has given back",
    ),
    Mutant(
        "own-writes-hide-other-changes",
        "cluster/client/workqueue.py",
        "            if found.noticed - found.written:\n",
        "            if found.noticed and not found.written:\n",
        "what happens to a job while its status is written goes unnoticed",
    ),
    Mutant(
        "retry-is-not-queued",
        "cluster/client/workqueue.py",
        "        self.add(key, pause)\n",
        "",
        "a pass that failed is not tried again",
    ),
    Mutant(
        "key-added-meanwhile-is-dropped",
        "cluster/client/workqueue.py",
        "        found.noticed.add(version)\n",
        "        pass\n",
        "what happens to a job while it is looked at goes unnoticed",
    ),
    Mutant(
        "back-off-is-never-reset",
        "controller/workers.py",
        "            return 1\n        self._queue.succeeded(ref)\n",
        "            return 1\n",
        "a job that failed to be looked at once is called stalled for ever",
    ),
    # The right to write
    Mutant(
        "mandate-outlives-its-lease",
        "controller/leader_election.py",
        "return max(0.0, interval.until - now) if interval.since <= now else 0.0",
        "return max(1.0, interval.until - now) if interval.since <= now else 0.0",
        "a leader that has lost its Lease goes on beside its successor",
    ),
    Mutant(
        "right-is-not-asked-before-an-attempt",
        "controller/controller.py",
        "        seconds = self._leadership.remaining(ref.resource)\n",
        "        seconds = 60.0\n",
        "a request is repeated after the Lease was lost",
    ),
    Mutant(
        "lease-counted-from-the-answer",
        "controller/leader_election.py",
        "self._interval = ValidInterval(since, sent + self._duration * (1 - _SAFETY_MARGIN))",
        "self._interval = ValidInterval(since, received + self._duration * (1 - _SAFETY_MARGIN))",
        "two leaders at once after a renewal that took long to be answered",
    ),
    Mutant(
        "lease-taken-too-early",
        "controller/leader_election.py",
        "rest = max(0.0, record.duration - self._seen.age(self._monotonic()))",
        "rest = max(0.0, record.duration / 2 - self._seen.age(self._monotonic()))",
        "a Lease is taken from a leader that lives",
    ),
    Mutant(
        "acts-before-the-namespaces-are-left",
        "controller/leader_election.py",
        "since = received if self._wider is not None else sent + self._duration",
        "since = received",
        "a controller that was just installed acts beside a host that leads a namespace",
    ),
    Mutant(
        "does-not-look-who-leads-the-cluster",
        "controller/leader_election.py",
        "        if self._rest_of_wider(asked=True):\n",
        "        if False:\n",
        "a host goes on leading its namespace beside the controller of the cluster",
    ),
    Mutant(
        "believes-its-watch-after-a-write",
        "controller/leader_election.py",
        "for fresh in (True,) if asked else (False, True):",
        "for fresh in (False,) if asked else (False, True):",
        "a host whose watch lags leads beside the controller of the cluster",
    ),
    Mutant(
        "an-error-means-nobody-leads",
        "controller/leader_election.py",
        "            except Forbidden:\n                return 0.0  # everybody",
        "            except ClusterError:\n                return 0.0  # everybody",
        "a host that cannot reach the server's answer leads beside the controller of the cluster",
    ),
    Mutant(
        "never-sees-the-end-of-the-cluster",
        "controller/leader_election.py",
        "lasts = record.duration if record.holder else _HANDOVER",
        "lasts = record.duration if record.holder else math.inf",
        "nobody leads a namespace after the controller of the cluster was uninstalled",
    ),
    Mutant(
        "wider-lease-never-lapses",
        "controller/leader_election.py",
        "if (rest := lasts - self._wider_seen.age(self._monotonic())) > 0:",
        "if (rest := lasts) > 0:",
        "nobody leads a namespace after the controller of the cluster was killed",
    ),
    Mutant(
        "lease-given-back-too-early",
        "controller/leader_election.py",
        "and self._monotonic() < self._left_until and self._busy():",
        "and False:",
        "a pod that is being made comes after another leader has begun",
    ),
    Mutant(
        "lease-is-kept-at-the-end",
        "controller/leader_election.py",
        "_RELEASE_ATTEMPTS if self._wrote else 0",
        "0",
        "the next leader waits for 15 seconds after an orderly end",
    ),
    Mutant(
        "second-kind-is-never-led",
        "controller/leader_election.py",
        "return self._first.valid() or self._monotonic() - self._first.other_since >= _HESITATION",
        "return self._first.valid()",
        "nobody drives the Volcano Jobs beside a controller of TFJobs",
    ),
    Mutant(
        "jobs-of-a-new-kind-are-not-read",
        "controller/controller.py",
        "        self._job_index.mark_all_changed()\n",
        "",
        "jobs of a kind that a controller leads later are never admitted",
    ),
    Mutant(
        "acts-before-it-has-listed",
        "controller/controller.py",
        "self._begun, self._term = term, ()",
        "self._begun, self._term = term, term",
        "a new leader acts on what it saw as a stand-by",
    ),
    Mutant(
        "pass-outlives-its-term",
        "controller/controller.py",
        "self._term != self._leadership.term or self._queue.cleared(ref):",
        "self._term != self._leadership.term:",
        "pods of an old attempt run beside those that another leader has created in the meantime",
    ),
    Mutant(
        "verdicts-of-the-last-term-stay",
        "controller/controller.py",
        "        self._admission.restart()\n",
        "",
        "what the last term gave away is never written, and keeps its room",
    ),
    Mutant(
        "controller-outlives-its-leadership",
        "client/controller_host.py",
        "if self.controller is not None and (not leads or self.controller.informers.rights_changed()):",
        "if self.controller is not None and not leads and self._stopped:",
        "a host keeps watching everything after it has lost its namespace",
    ),
    # Trust in caches and lists
    Mutant(
        "new-right-old-view",
        "controller/controller.py",
        "        if term != listed:\n            self.informers.relist()\n",
        "",
        "a leader that takes over acts on what it saw before",
    ),
    Mutant(
        "expired-version-is-watched-again",
        "cluster/client/informer.py",
        'self._resume, self._failures = "", max(self._failures, self._expiries)',
        "self._failures = max(self._failures, self._expiries)",
        "a controller whose watch has expired (410) is blind for ever",
    ),
    Mutant(
        "restored-etcd-is-never-believed",
        "cluster/client/informer.py",
        "if older and not doubted and self._older_lists < _MAX_STALE_LISTS:",
        "if older:",
        "controllers are blind for ever after a backup of etcd was restored",
    ),
    # Writes
    Mutant(
        "conflict-is-gone",
        "controller/plan_executor.py",
        'if self._cluster.get(resource, namespace, name)["metadata"]["uid"] == uid:\n',
        "if False:\n",
        "a pod whose deletion was refused is forgotten, and runs beside its successors",
    ),
    Mutant(
        "status-without-version",
        "controller/plan_executor.py",
        'body = {**stored, "status": status}',
        'body = {**self._cluster.get(ref.resource, ref.namespace, ref.name), "status": status}',
        "a controller writes over what another has written since",
    ),
    Mutant(
        "attempts-overlap",
        "core/reconciler/job_objects.py",
        "return self.job or replica.type in self.types or replica in self.replicas",
        "return replica in self.replicas",
        "new pods meet those of the attempt before",
    ),
    Mutant(
        "services-left-behind",
        "core/reconciler/job_objects.py",
        "    policy, frees_addresses = effective",
        "    return services.job_objects(s.job).keys()\n    policy, frees_addresses = effective",
        "services of finished jobs pile up",
    ),
    # Admission
    Mutant(
        "withdrawn-verdict-stands",
        "controller/gang_admission.py",
        "            self._revert(uid)\n        self.want()\n",
        "            del self._given[uid]\n        self.want()\n",
        "a gang whose verdict could not be written waits for ever, and keeps its room from others",
    ),
    Mutant(
        "one-pod-too-many",
        "core/gang/cache.py",
        "to_come, assumed = max(0, wanted - there), list[PodsOnNode]()",
        "to_come, assumed = max(0, wanted - there - 1), list[PodsOnNode]()",
        "gangs are admitted for which one pod has no room",
    ),
    Mutant(
        "queue-quota-ignored",
        "core/gang/backfill.py",
        "return None  # the quota is checked again below, without what is reserved of it",
        "pass",
        "a queue has more than its quota",
    ),
    Mutant(
        "resource-quota-ignored",
        "core/gang/scheduling.py",
        "if self._cache.resource_quotas.beyond(entry.gang, counts, more=entry.admitted) is not None:",
        "if False:",
        "half of a gang is made, and the namespace's ResourceQuota refuses the rest",
    ),
    Mutant(
        "ended-pods-take-room",
        "core/gang/resources/pod_index.py",
        "if not _lives(pod):",
        "if False:",
        "a gang waits for room that only the pods of finished jobs are in",
    ),
    Mutant(
        "done-replicas-keep-their-place",
        "core/gang/cache.py",
        "return max(0, assigned_count(gang, member) - gang.done.get(member.type, 0)) if gang.assigned else 0",
        "return assigned_count(gang, member) if gang.assigned else 0",
        "a gang waits for room of replicas that are done",
    ),
    Mutant(
        "place-is-not-given-back",
        "core/reconciler/gang_rules.py",
        "return status.next_attempt(None).with_phase(",
        "return status.next_attempt(status.admission).with_phase(",
        "a gang that was preempted keeps its place",
    ),
    Mutant(
        "larger-than-asked-for",
        "core/model/assignment.py",
        "{spec.type: min(counts.get(spec.type, spec.replicas), spec.most) for spec in job.replica_specs}",
        "{spec.type: counts.get(spec.type, spec.replicas) for spec in job.replica_specs}",
        "a job that was scaled down keeps its place as it was",
    ),
    # The life of a job
    Mutant(
        "disruptions-spend-the-budget",
        "core/reconciler/restarts.py",
        "failures = sum(one.disruption is None for one in costs)",
        "failures = len(costs)",
        "a drained node makes a job fail for its backoffLimit",
    ),
    Mutant(
        "taken-counts-as-failed",
        "core/reconciler/lifecycle_policy.py",
        "yield PodEvent(event=Event.POD_EVICTED, spec=spec, replica=replica, disruption=taken)",
        "yield PodEvent(event=Event.POD_EVICTED, spec=spec, replica=replica)",
        "a pod that a user deleted spends a restart",
    ),
    Mutant(
        "old-pods-count",
        "core/reconciler/job_context.py",
        "or pod.attempt != status.attempts.label(replica)",
        'or pod.attempt.split(".")[0] != str(status.attempts.job)',
        "a pod that failed is taken for the one that is to follow it, and fails again",
    ),
    Mutant(
        "success-too-early",
        "core/reconciler/transitions.py",
        "if needed and all(replica in s.facts.succeeded for replica in needed):",
        "if needed and any(replica in s.facts.succeeded for replica in needed):",
        "a job has succeeded when its first worker has",
    ),
    Mutant(
        "deadline-needs-another-event",
        "core/reconciler/transitions.py",
        "LIVE, _BY_POLICY, active_deadline_at),",
        "LIVE, _BY_POLICY),",
        "activeDeadlineSeconds falls when something else happens",
    ),
    Mutant(
        "ttl-needs-another-event",
        "core/reconciler/reconcile.py",
        "return s.next_of(_expires_at(s.job, s.status), next_transition_at(s), retry_at(s), *backoffs)",
        "return s.next_of(next_transition_at(s), retry_at(s), *backoffs)",
        "a finished job is deleted when something else happens",
    ),
    Mutant(
        "limit-reached-and-running-on",
        "core/reconciler/job_objects.py",
        "if policy is CleanPodPolicy.NONE and reason_row(status.reason).cuts_pods_short:",
        "if False:",
        "pods of a job that is over its deadline run on",
    ),
    Mutant(
        "no-suspension-while-waiting",
        "core/reconciler/transitions.py",
        "    if not s.job.run_policy.suspend:\n        return None\n",
        "    if not s.job.run_policy.suspend or s.status.admission is None:\n        return None\n",
        "a job that waits for its place cannot be suspended",
    ),
    Mutant(
        "dependency-too-early",
        "core/reconciler/job_objects.py",
        "return other is None or counts.ready + counts.succeeded >= _needed(other)",
        "return other is None or counts.pending + counts.ready + counts.succeeded >= _needed(other)",
        "a task starts before the one that it depends on is up",
    ),
)
