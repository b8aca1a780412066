"""Defects in the code that the fault machine guards, one each: what an engineer might well write, and what it does.

``old`` must be in the file exactly once. A mutant that no longer applies is mended together with the code that it is
of (``test_mutants``); one that turns out to change nothing visible is replaced by another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Mutant:
    """``file`` (below ``tf_dist``) with ``new`` in place of ``old``; ``means``: what a user would meet."""

    name: str
    file: str
    old: str
    new: str
    means: str


MUTANTS: Final = (
    # What wakes the loop
    Mutant(
        "room-bell",
        "controller/informers/scoped_informers.py",
        "if not _occupies_node(new) and (old is None or _occupies_node(old)):",
        "if False:",
        "a gang waits beside the room that a pod has left",
    ),
    Mutant(
        "node-bell",
        "controller/informers/scoped_informers.py",
        "if not transforms.same_but_version(old, new):",
        "if old is None:",
        "a gang waits though its node is ready again",
    ),
    Mutant(
        "stake-bell",
        "controller/driver.py",
        "changed = (before and before.admission_inputs) != (after and after.admission_inputs)",
        "changed = before is None or after is None",
        "a gang waits beside the place that a job has given back",
    ),
    Mutant(
        "queue-keeps-the-later-wish",
        "cluster/client/workqueue.py",
        "if key in self._due and self._due[key][0] <= when:",
        "if key in self._due:",
        "a job that has a deadline reacts to nothing until it falls",
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
        "                self._noticed[key].add(version)\n",
        "                pass\n",
        "what happens to a job while it is looked at goes unnoticed",
    ),
    Mutant(
        "back-off-is-never-reset",
        "controller/worker_pool.py",
        "            return 1\n        self._queue.succeeded(ref)\n",
        "            return 1\n",
        "a job that failed to be looked at once is called stalled for ever",
    ),
    Mutant(
        "deaths-go-unnoticed",
        "controller/takeover.py",
        "return self._stale - before, self._stale ^ before",
        "return frozenset(), self._stale ^ before",
        "jobs of a driver that has died are taken over only when something else happens to them",
    ),
    Mutant(
        "only-the-first-drivers-are-watched",
        "controller/leases/leadership.py",
        "if wanted != self._refs:",
        "if wanted and not self._refs:",
        "jobs of a driver that came later are never taken over",
    ),
    # The right to write
    Mutant(
        "mandate-outlives-its-lease",
        "controller/leases/leader_election.py",
        "return interval.since <= self._monotonic() < interval.until",
        "return interval.since <= self._monotonic()",
        "a driver that has lost its Lease goes on beside its successor",
    ),
    Mutant(
        "right-is-not-asked-before-an-attempt",
        "controller/driver.py",
        "return 0.0 if self._stopped.is_set() else self._leadership.remaining()",
        "return 0.0 if self._stopped.is_set() else 60.0",
        "a request is repeated after the Lease was lost",
    ),
    Mutant(
        "lease-counted-from-the-answer",
        "controller/leases/leader_election.py",
        "self._valid_interval = ValidInterval(since, sent + self._duration * (1 - _SAFETY_MARGIN))",
        "self._valid_interval = ValidInterval(since, received + self._duration * (1 - _SAFETY_MARGIN))",
        "two drivers at once after a renewal that took long to be answered",
    ),
    Mutant(
        "lapsed-driver-does-not-wait",
        "controller/leases/leader_election.py",
        "since = received + (TAKEOVER_DELAY if self._maybe_contested or lapsed else 0.0)",
        "since = received",
        "a driver whose Lease had lapsed goes on while others take its jobs over",
    ),
    Mutant(
        "lease-taken-too-early",
        "controller/leases/lease.py",
        "return self.age(now) >= self.duration",
        "return self.age(now) >= self.duration / 2",
        "a Lease is taken from a driver that lives",
    ),
    Mutant(
        "dead-for-ever",
        "controller/leases/lease_monitor.py",
        "entry.stale_until = sent + DEAD_VERDICT_VALID_FOR if stale else -math.inf",
        "entry.stale_until = math.inf if stale else entry.stale_until",
        "a driver that has come back has its jobs taken away again and again",
    ),
    Mutant(
        "takeover-without-breaking-the-lease",
        "controller/leases/lease_monitor.py",
        "return entry.seen.expired(self._monotonic()) and self._break(ref, stored)",
        "return entry.seen.expired(self._monotonic())",
        "jobs of replicas that may renew at any moment are taken over",
    ),
    Mutant(
        "runner-takes-the-job",
        "controller/job_reconciler.py",
        "plan = self.plan(known, verdict, driver=known.driver)",
        "plan = self.plan(known, verdict)",
        "the admission leader makes itself the driver of all jobs",
    ),
    Mutant(
        "takeover-without-looking-for-pods",
        "controller/job_reconciler.py",
        "            self._informers.confirm(ref, known.uid)\n        seen",
        "        seen",
        "pods that the last driver made are taken for pods that were taken away",
    ),
    Mutant(
        "leftovers-of-dead-drivers-stay",
        "controller/takeover.py",
        "            self._pending_cleanup[ref] = known.driver\n",
        "            pass\n",
        "pods of a job that is over run on when its driver dies in time",
    ),
    # What is believed
    Mutant(
        "new-right-old-view",
        "controller/driver.py",
        "            self.informers.relist()\n",
        "",
        "a driver that takes over acts on what it saw before",
    ),
    Mutant(
        "relist-wish-lost",
        "cluster/client/informer.py",
        "self._wanted = self._wanted or wanted",
        "pass",
        "a list that failed counts as made",
    ),
    Mutant(
        "expired-version-is-watched-again",
        "cluster/client/informer.py",
        'self._resume, self._failures = "", max(self._failures, self._expiries)',
        "self._failures = max(self._failures, self._expiries)",
        "a driver whose watch has expired (410) is blind for ever",
    ),
    Mutant(
        "restored-etcd-is-never-believed",
        "cluster/client/informer.py",
        "if older and self._older_lists < _MAX_STALE_LISTS:",
        "if older:",
        "drivers are blind for ever after a backup of etcd was restored",
    ),
    Mutant(
        "label-makes-an-owner",
        "core/api/names.py",
        'return owned_by_key(metadata.get("namespace") or "", str(uid)) if controlled else ""',
        'return owned_by_key(metadata.get("namespace") or "", str(uid)) if uid else ""',
        "a pod that a user labelled is taken for the job's own, and deleted",
    ),
    # What is done
    Mutant(
        "conflict-is-gone",
        "controller/plan_executor.py",
        "            if self._is_there(resource, namespace, name, uid):\n                raise\n",
        "",
        "a pod whose deletion was refused is forgotten, and runs beside its successors",
    ),
    Mutant(
        "strangers-object-is-ours",
        "controller/plan_executor.py",
        'if any(owner.get("uid") == stored["metadata"]["uid"] and owner.get("controller") for owner in owners):',
        "if owners:",
        "a pod of another owner under the name of ours is taken for it, and ours is never made",
    ),
    Mutant(
        "status-without-version",
        "controller/plan_executor.py",
        'body = {**stored, "status": status}',
        'body = {**self._cluster.get(ref.resource, ref.namespace, ref.name), "status": status}',
        "a driver writes over what another has written since",
    ),
    Mutant(
        "attempts-overlap",
        "core/reconciler/sync.py",
        "return self.job or replica.type in self.types or replica in self.replicas",
        "return replica in self.replicas",
        "new pods meet those of the attempt before",
    ),
    Mutant(
        "services-left-behind",
        "core/reconciler/sync.py",
        "    policy, frees_addresses = effective",
        "    return services.job_objects(s.job).keys()\n    policy, frees_addresses = effective",
        "services of finished jobs pile up",
    ),
    # Places
    Mutant(
        "told-before-written-down",
        "controller/gang_admission/verdicts.py",
        "if given[1] == known.version and known.uid in self._intended else None",
        "if given[1] == known.version else None",
        "two arbiters give the same room away",
    ),
    Mutant(
        "intentions-forgotten",
        "controller/gang_admission/pending_admissions.py",
        "self._stored = self._write(stored, kept | new)",
        "self._stored = self._write(stored, new)",
        "two arbiters give the same room away when one dies between two batches",
    ),
    Mutant(
        "failed-fence-ignored",
        "controller/gang_admission/pending_admissions.py",
        "if self._is_there(uid, ref):\n                    raise\n",
        "if self._is_there(uid, ref):\n                    return\n",
        "a verdict that is in the air counts for nothing, and arrives",
    ),
    Mutant(
        "settled-intentions-stay",
        "controller/gang_admission/pending_admissions.py",
        "for uid, ref in self._jobs.items() if uid not in self._settled}",
        "for uid, ref in self._jobs.items()}",
        "after 500 gangs no other is admitted",
    ),
    Mutant(
        "withdrawn-verdict-stands",
        "controller/gang_admission/verdicts.py",
        "            self._drop(uid)\n        self._pending.settle((uid,))\n",
        "            del self._given[uid]\n        self._pending.settle((uid,))\n",
        "a gang whose verdict could not be written waits for ever, and keeps its room from others",
    ),
    Mutant(
        "nobodys-jobs-count",
        "controller/takeover.py",
        'return is_claimed(known.stored) and "/" in known.driver and known.driver not in self._stale',
        "return True",
        "a gang without a driver, or whose driver is dead, is admitted",
    ),
    Mutant(
        "decides-beside-the-arbiter",
        "controller/gang_admission/admission_leader.py",
        "return self._elector.valid() if self._is_candidate() else not self._sees_another()",
        "return self._elector.valid() if self._is_candidate() else True",
        "drivers of one namespace give away room that they do not see",
    ),
    Mutant(
        "one-pod-too-many",
        "core/gang/usage.py",
        "to_come, assumed = max(0, wanted - there), list[PodsOnNode]()",
        "to_come, assumed = max(0, wanted - there - 1), list[PodsOnNode]()",
        "gangs are admitted for which one pod has no room",
    ),
    Mutant(
        "queue-quota-ignored",
        "core/gang/backfill.py",
        "if request is None or not cache.quotas.fits(entry.queue, request.need(counts)):",
        "if request is None:",
        "a queue has more than its quota",
    ),
    Mutant(
        "resource-quota-ignored",
        "core/gang/cycle.py",
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
        "core/gang/usage.py",
        "return max(0, assigned_count(gang, member) - gang.done.get(member.type, 0)) if gang.assigned else 0",
        "return assigned_count(gang, member) if gang.assigned else 0",
        "a gang waits for room of replicas that are done",
    ),
    Mutant(
        "place-is-not-given-back",
        "core/reconciler/requeue.py",
        "return status.next_attempt(None).with_phase(",
        "return status.next_attempt(status.admission).with_phase(",
        "a gang that was preempted keeps its place",
    ),
    Mutant(
        "larger-than-asked-for",
        "core/api/assignment.py",
        "{spec.type: min(counts.get(spec.type, spec.replicas), spec.most) for spec in job.replica_specs}",
        "{spec.type: counts.get(spec.type, spec.replicas) for spec in job.replica_specs}",
        "a job that was scaled down keeps its place as it was",
    ),
    # How a job goes on, and how it ends
    Mutant(
        "kubelets-restarts-forgotten",
        "core/reconciler/restarts.py",
        "return replace(status, container_restarts=status.container_restarts + _by_kubelet(s, replicas))",
        "return status",
        "a job restarts more often than its backoffLimit says",
    ),
    Mutant(
        "disruptions-spend-the-budget",
        "core/reconciler/restarts.py",
        "failures = sum(one.disruption is None for one in costs)",
        "failures = len(costs)",
        "a drained node makes a job fail for its backoffLimit",
    ),
    Mutant(
        "taken-counts-as-failed",
        "core/api/pod_events.py",
        "yield PodEvent(event=Event.POD_EVICTED, spec=spec, replica=replica, disruption=taken)",
        "yield PodEvent(event=Event.POD_EVICTED, spec=spec, replica=replica)",
        "a pod that a user deleted spends a restart",
    ),
    Mutant(
        "old-pods-count",
        "core/api/pod_events.py",
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
        "polite-end-is-success",
        "core/api/pod_events.py",
        "    if pod.deleting:\n        return False\n",
        "",
        "a worker that was told to stop, and does, has succeeded",
    ),
    Mutant(
        "recovery-never-due",
        "core/reconciler/node_loss.py",
        "since = (_since(s, place) or s.now) if lacks else None",
        "since = s.now if lacks else None",
        "a gang that has lost a node for good is half placed for ever",
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
        "core/reconciler/sync.py",
        "if policy is CleanPodPolicy.NONE and status.reason in _CUT_SHORT:",
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
        "core/reconciler/sync.py",
        "return other is None or counts.ready + counts.succeeded >= _needed(other)",
        "return other is None or counts.pending + counts.ready + counts.succeeded >= _needed(other)",
        "a task starts before the one that it depends on is up",
    ),
)
