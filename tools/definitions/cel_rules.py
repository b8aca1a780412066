"""Validation rules (CEL) of the definitions: the API server refuses common mistakes at once.

They say what ``core.dialects`` says of a stored job, and never more: a job that runs must not lose its status because a
definition became stricter. A rule cannot see annotations. Each expression must stay below the API server's
bound on estimated cost, which is why lists and texts in the schemas have bounds.
"""

from __future__ import annotations

from typing import Final

from tf_dist.core.model.names import KEPT_NAME
from tools.definitions.builders import Rule

MOST_CHARACTERS: Final = 63
LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SERVICE: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
LABEL_OR_NOTHING: Final = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"

_TYPES: Final = "['chief', 'master', 'ps', 'worker', 'evaluator']"
_LEADS: Final = "t.lowerAscii() in ['chief', 'master']"
_MANAGER: Final = (
    "(has({0}.runPolicy) && has({0}.runPolicy.managedBy) ? {0}.runPolicy.managedBy : 'kubeflow.org/training-operator')"
)
_KIND: Final = "(has({0}.tfReplicaType) ? {0}.tfReplicaType : 'MASTER')"
_COUNT: Final = "(has({0}.replicas) ? {0}.replicas : 1)"
_CHIEF: Final = "(has(self.terminationPolicy) ? self.terminationPolicy.chief.replicaName : 'MASTER')"
_INDEX: Final = (
    "(has(self.terminationPolicy) && has(self.terminationPolicy.chief.replicaIndex)"
    " ? self.terminationPolicy.chief.replicaIndex : 0)"
)

# Keys with a dash are written so.
_FEWEST: Final = "self.min__dash__instance"
_MOST: Final = "self.max__dash__instance"

# On spec.tfReplicaSpecs.
REPLICA_TYPES: Final[tuple[Rule, ...]] = (
    (f"self.all(t, t.lowerAscii() in {_TYPES})", "a replica type is one of Chief, Master, PS, Worker, Evaluator"),
    ("self.all(t, self.exists_one(u, u.lowerAscii() == t.lowerAscii()))", "a replica type is there twice"),
    (f"self.filter(t, {_LEADS}).size() <= 1", "a job has one Chief or one Master"),
    (
        f"self.all(t, !({_LEADS}) || {_COUNT.format('self[t]')} == 1)",
        "a Chief or Master has 1 replica",
    ),
    (f"self.exists(t, {_COUNT.format('self[t]')} > 0)", "there are no replicas at all: nothing would run"),
    (
        f"self.exists(t, {_LEADS}) || self.all(t, t.lowerAscii() != 'worker' || {_COUNT.format('self[t]')} > 0)",
        "0 workers and no chief: no replica decides whether the job has succeeded",
    ),
)

# The language has no sum that a server can estimate: each type by its name. Other spellings are left to the controller.
_NAMED: Final = ("Chief", "Master", "PS", "Worker", "Evaluator")
_OF_TYPE: Final = "('{0}' in self.tfReplicaSpecs ? " + _COUNT.format("self.tfReplicaSpecs['{0}']") + " : 0)"
_ALL: Final = " + ".join(map(_OF_TYPE.format, _NAMED))
_LEAST: Final = "self.runPolicy.schedulingPolicy.minAvailable"


def _workers(bound: str, comparison: str, message: str) -> Rule:
    """A rule about the number of workers of a v1alpha1 job, where that bound is set."""
    of_workers = f"{_KIND.format('r')} != 'WORKER' || {_COUNT.format('r')} {comparison} {bound}"
    return (
        f"!has(self.replicaSpecs) || !has({bound}) || {bound} == 0 || self.replicaSpecs.all(r, {of_workers})",
        message,
    )


# On a pod template of v1.
TEMPLATE: Final[tuple[Rule, ...]] = (
    ("self.spec.containers.exists(c, c.name == 'tensorflow')", "no container is named tensorflow"),
)

# On the spec of a TFJob.
TFJOB_SPEC: Final[tuple[Rule, ...]] = (
    (
        "!has(self.tfReplicaSpecs) || !has(self.runPolicy) || !has(self.runPolicy.schedulingPolicy)"
        f" || !has({_LEAST}) || !self.tfReplicaSpecs.all(t, t in {list(_NAMED)}) || {_LEAST} <= {_ALL}",
        "runPolicy.schedulingPolicy.minAvailable is more than there are replicas: it could never start",
    ),
    (
        "!has(self.replicaSpecs)"
        f" || self.replicaSpecs.exists(r, {_KIND.format('r')} == {_CHIEF} && {_COUNT.format('r')} > {_INDEX})",
        "terminationPolicy.chief (MASTER 0 if not said) is not a replica of the job",
    ),
    (
        f"!has(self.replicaSpecs) || !has({_FEWEST}) || !has({_MOST}) || {_MOST} == 0 || {_FEWEST} <= {_MOST}",
        "min-instance is more than max-instance",
    ),
    _workers(_FEWEST, ">=", "there are fewer workers than min-instance"),
    _workers(_MOST, "<=", "there are more workers than max-instance"),
    (
        "!has(self.replicaSpecs) || !has(self.RuntimeId) || self.RuntimeId == ''"
        f" || (self.RuntimeId.size() <= {MOST_CHARACTERS} && self.RuntimeId.matches('{LABEL}'))",
        "RuntimeId becomes part of names: lower-case letters, digits and '-'",
    ),
    (
        "!has(self.replicaSpecs) || !has(self.schedulerName) || self.schedulerName == ''"
        f" || (self.schedulerName.size() <= {MOST_CHARACTERS} && self.schedulerName.matches('{LABEL}'))",
        "schedulerName is not a name: lower-case letters, digits and '-'",
    ),
    (f"{_MANAGER.format('self')} == {_MANAGER.format('oldSelf')}", "runPolicy.managedBy is immutable"),
    ("has(self.replicaSpecs) == has(oldSelf.replicaSpecs)", "a job keeps its layout: tfReplicaSpecs or replicaSpecs"),
    (
        # Left out it is what it was: the controller writes it, and the file that a user replaces the job with has none.
        "!has(oldSelf.RuntimeId) || oldSelf.RuntimeId == '' || !has(self.RuntimeId)"
        " || self.RuntimeId == '' || self.RuntimeId == oldSelf.RuntimeId",
        "RuntimeId is immutable: it is part of the names of pods and services",
    ),
)

# On spec.replicaSpecs, and on each entry.
ENTRIES: Final[tuple[Rule, ...]] = (
    (
        f"self.all(r, self.exists_one(s, {_KIND.format('s')} == {_KIND.format('r')}))",
        "a tfReplicaType (MASTER if not said) is there twice: put their replicas into one entry",
    ),
)
ENTRY: Final[tuple[Rule, ...]] = (
    (f"{_KIND.format('self')} != 'MASTER' || {_COUNT.format('self')} <= 1", "there can be one MASTER"),
    (
        f"{_KIND.format('self')} == 'PS' || (has(self.template) && has(self.template.spec)"
        " && has(self.template.spec.containers)"
        " && self.template.spec.containers.exists(c, c.name == 'tensorflow'))",
        "template must have a container named tensorflow; only PS may leave that out, and gets a standard server",
    ),
)


def _names(replicas: str, each: str, type_: str, count: str) -> Rule:
    longest = f"self.metadata.name.size() + {type_}.size() + string({count} - 1).size() + 2"
    fits = f"{count} < 1 || {longest} <= {MOST_CHARACTERS}"
    return (
        f"!has(self.spec.{replicas}) || self.spec.{replicas}.all({each}, {fits})",
        f"the name is too long: NAME-TYPE-INDEX, the name of a replica, may have {MOST_CHARACTERS} characters",
    )


# v1alpha1 cuts the job's name, but not a RuntimeId that the user gave.
_CUT_NAME: Final = f"(self.metadata.name.size() > {KEPT_NAME} ? {KEPT_NAME} : self.metadata.name.size())"
_SERVICE_NAME: Final = (
    f"{_CUT_NAME} + {_KIND.format('r')}.size() + self.spec.RuntimeId.size()"
    f" + string({_COUNT.format('r')} - 1).size() + 3"
)

# On the whole of a TFJob.
TFJOB: Final[tuple[Rule, ...]] = (
    _names("tfReplicaSpecs", "t", "t", _COUNT.format("self.spec.tfReplicaSpecs[t]")),
    (
        "!has(self.spec.replicaSpecs) || !has(self.spec.RuntimeId) || self.spec.RuntimeId == ''"
        f" || self.spec.replicaSpecs.all(r, {_COUNT.format('r')} < 1 || {_SERVICE_NAME} <= {MOST_CHARACTERS})",
        f"NAME-TYPE-RUNTIMEID-INDEX, the name of a service, may have {MOST_CHARACTERS} characters",
    ),
)

_TASKS: Final = "(has({0}.replicas) ? {0}.replicas : 0)"
PLUGINS: Final[tuple[Rule, ...]] = (
    ("self.all(p, p in ['env', 'svc', 'ssh', 'tensorflow'])", "tf-dist plays the plugins env, svc, ssh and tensorflow"),
)

# See above; of more tasks the controller adds up the replicas.
_ADDED: Final = 8
_TOTAL: Final = " + ".join(
    f"(self.tasks.size() > {index} ? {_TASKS.format(f'self.tasks[{index}]')} : 0)" for index in range(_ADDED)
)

# On the whole of a Volcano Job, on its spec, on spec.tasks and on a task.
VOLCANO: Final[tuple[Rule, ...]] = (
    _names("tasks", "t", "(has(t.name) && t.name != '' ? t.name : 'default0')", _TASKS.format("t")),
)
# What no update may change, as far as it is cheap to compare; the controller compares all of it (update_problems).
_NAMED_QUEUE: Final = "(has({0}.queue) && {0}.queue != '' ? {0}.queue : 'default')"
VOLCANO_SPEC: Final[tuple[Rule, ...]] = (
    (
        f"!has(self.minAvailable) || self.tasks.size() > {_ADDED} || self.minAvailable <= {_TOTAL}",
        "minAvailable is more than the tasks have replicas: it could never start",
    ),
    (
        f"!has(self.minSuccess) || self.tasks.size() > {_ADDED} || self.minSuccess <= {_TOTAL}",
        "minSuccess is more than the tasks have replicas",
    ),
    ("!has(self.queue) || self.queue != 'root'", "jobs cannot be put into the root queue"),
    ("self.tasks.size() == oldSelf.tasks.size()", "job updates may not add or remove tasks"),
    (f"{_NAMED_QUEUE.format('self')} == {_NAMED_QUEUE.format('oldSelf')}", "the queue of a job cannot be changed"),
)
TASKS: Final[tuple[Rule, ...]] = (
    (
        "self.all(t, !has(t.name) || t.name == '' || self.exists_one(u, has(u.name) && u.name == t.name))",
        "two tasks have the same name",
    ),
    (f"self.exists(t, {_TASKS.format('t')} > 0)", "there are no replicas at all: nothing would run"),
)
TASK: Final[tuple[Rule, ...]] = (
    (
        f"!has(self.minAvailable) || self.minAvailable <= {_TASKS.format('self')}",
        "minAvailable is more than replicas",
    ),
)

POLICY: Final[tuple[Rule, ...]] = (
    (
        "((has(self.event) && self.event != '') || (has(self.events) && self.events.size() > 0)) != has(self.exitCode)",
        "a policy names an event or an exitCode, and not both",
    ),
    (
        "!has(self.exitCode) || self.exitCode != 0",
        "0 means success, and policies do not react to it: use TaskCompleted",
    ),
)

# On a rule of a label selector.
SELECTOR_RULE: Final[tuple[Rule, ...]] = (
    (
        "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
        "In and NotIn compare with values, Exists and DoesNotExist have none",
    ),
)

QUEUE: Final[tuple[Rule, ...]] = (
    (
        "!has(self.spec.parent) || self.spec.parent == '' || self.spec.parent != self.metadata.name",
        "a queue cannot be its own parent",
    ),
)
