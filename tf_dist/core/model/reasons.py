"""The registry of reasons: each word that says why a job, a container or an Event is as it is, with its consequences.

A reason is a member of ``Reason`` and has one row. Statuses, conditions, Events, diagnoses, outcomes and the reference
(``docs/reference/reasons.md``) read the row; no other module maps reasons to anything of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from tf_dist.core.model.names import MAX_DISRUPTIONS, STARTUP_TIMEOUT

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"


class Level(StrEnum):
    """Severity of a reason, and of a diagnosis."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Category(StrEnum):
    """Category of a diagnosis. A contract: tools may rely on the values, so they are added to and never renamed."""

    ADMISSION = "waits-for-admission"
    NEVER_FITS = "never-fits"
    QUOTA = "quota-exceeded"
    QUEUE = "queue-not-found"
    SCHEDULER_MISSING = "gang-scheduler-missing"
    RESERVED = "room-is-reserved"
    PREEMPTED = "preempted"
    SCHEDULE_TIMEOUT = "not-scheduled-in-time"
    UNSCHEDULABLE = "unschedulable"
    REFUSED = "refused"
    IMAGE = "image"
    CONFIGURATION = "configuration"
    BACKOFF = "waits-to-restart"
    STOPPING = "waits-for-old-pods"
    DEPENDENCY = "waits-for-dependency"
    STARTING = "starting"
    FAILURE = "failure"
    COMMAND = "command"
    MEMORY = "out-of-memory"
    EVICTION = "eviction"
    NODE_LOST = "node-lost"
    DEADLINE = "deadline"
    BUDGET = "restart-budget"
    INVALID = "invalid-spec"
    NEWER_FORMAT = "newer-status-format"
    SUSPENDED = "suspended"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    NO_LEADER = "no-leader"
    MANAGED_ELSEWHERE = "managed-elsewhere"
    DELETING = "deleting"


class OutcomeKind(StrEnum):
    """How a job ended, or why a client stopped waiting for it. A contract of every face: added to, never renamed."""

    SUCCEEDED = "succeeded"  # it did what its policies ask of a success
    FAILED = "failed"  # by itself, or by a policy for a failure
    EVICTED = "evicted"  # its pods were taken away, and a policy or the bound on disruptions ended it
    PREEMPTED = "preempted"  # it lost its admission to a job of a higher priority, and a policy ended it
    DEADLINE_EXCEEDED = "deadline_exceeded"  # its own deadline, or the time of the task, step or command
    BACKOFF_LIMIT_EXCEEDED = "backoff_limit_exceeded"  # no restart was left
    ADMISSION_TIMEOUT = "admission_timeout"  # it was not admitted in the time that the task or step gave it
    START_TIMEOUT = "start_timeout"  # it was admitted and did not run in time
    IMAGE_PULL_FAILED = "image_pull_failed"  # an image cannot be had, so it never ran
    INVALID = "invalid"  # its spec cannot be read, and never could
    SUSPENDED = "suspended"  # a user stopped it, and may resume it
    DELETED = "deleted"  # a user deleted it
    UNKNOWN = "unknown"  # the client had to stop waiting; the job may go on


DISRUPTED: Final = frozenset({OutcomeKind.EVICTED, OutcomeKind.PREEMPTED})


class Group(StrEnum):
    """What a reason is the reason of; the values are the headings of the reference."""

    WAITING = "Reasons why a job waits"
    STATE = "Reasons of a job's state"
    CONTAINER = "Reasons of containers that cannot run, in the kubelet's words"
    END = "Reasons why a job ended, or why replicas start again"
    EVENT = "Further reasons of Events"


@dataclass(frozen=True, slots=True)
class Row:
    """What follows from a reason."""

    word: str
    """The reason as it is written: a contract, added to and never renamed."""
    group: Group
    meaning: str
    """One sentence for the reference."""
    level: Level = Level.INFO
    """How severe it is; the Event of anything above INFO is a Warning."""
    category: Category | None = None
    """The category of its diagnosis."""
    advice: str = ""
    """What a user can do about it."""
    advice_at_end: str = ""
    """The same, once the job has ended for it; "": ``advice``."""
    outcome: OutcomeKind = OutcomeKind.FAILED
    """The outcome of a job that has ended, or was stopped, for it."""
    is_event: bool = True
    """Whether an Event is recorded when a job gets this reason."""
    cuts_pods_short: bool = False
    """Whether running pods stop when a job ends for it, although ``cleanPodPolicy: None`` would keep them."""
    charged: bool = True
    """Whether a restart for it is charged to the restart budget."""
    unreachable: bool = False
    """Whether no change of load lets the gang start, only a change of the job or of the nodes."""
    permanent: bool = False
    """Of a container: whether another pod of the same template would fail as well."""

    @property
    def event_type(self) -> str:
        """The type of its Kubernetes Event."""
        return "Normal" if self.level is Level.INFO else "Warning"


class Reason(StrEnum):
    """Every reason that tf-dist writes or acts on; ``row`` is what follows from it."""

    row: Row

    def __new__(cls, row: Row) -> Self:
        """The member of a row; its value is the word."""
        member = str.__new__(cls, row.word)
        member._value_ = row.word
        member.row = row
        return member

    # Why a job waits for its admission.
    WAITING_FOR_CAPACITY = Row(
        "WaitingForCapacity",
        Group.WAITING,
        "the cluster does not have room for the whole gang at present",
        category=Category.ADMISSION,
        advice="it starts as soon as there is room for its gang",
    )
    WAITING_IN_QUEUE = Row(
        "WaitingInQueue",
        Group.WAITING,
        "gangs before it in its queue are admitted first",
        category=Category.ADMISSION,
        advice="it starts as soon as there is room for its gang",
    )
    RESERVED = Row(
        "Reserved",
        Group.WAITING,
        "there is room, which is reserved for a gang that has waited longer",
        category=Category.RESERVED,
        advice="the room is kept for a gang that has waited longer; a shorter job may pass if it says how long it runs",
    )
    PREEMPTING = Row(
        "Preempting",
        Group.WAITING,
        "jobs of lower priority are stopped to make room for it",
        category=Category.ADMISSION,
        advice="it starts when the pods that make room for it are gone",
    )
    QUOTA_EXCEEDED = Row(
        "QuotaExceeded",
        Group.WAITING,
        "its queue's quota, with what it may borrow, is in use",
        category=Category.QUOTA,
        advice="it starts when jobs of its queue end; tf-dist queues shows who uses what, and its owner may raise the"
        " quota",
    )
    RESOURCE_QUOTA_EXCEEDED = Row(
        "ResourceQuotaExceeded",
        Group.WAITING,
        "a ResourceQuota of its namespace does not have enough left for all of its pods",
        category=Category.QUOTA,
        advice="it starts when pods of its namespace end or the quota is raised (kubectl describe resourcequota)",
    )
    NEVER_FITS = Row(
        "NeverFits",
        Group.WAITING,
        "the cluster, or its queue, could not hold the gang even if it were empty",
        Level.ERROR,
        Category.NEVER_FITS,
        "ask for less in resources.requests, for fewer replicas, or add nodes (locally: tf-dist run --node cpu=8); a"
        " ResourceQuota that it names has to be raised",
        outcome=OutcomeKind.INVALID,
        unreachable=True,
    )
    UNREADABLE = Row(
        "Unreadable",
        Group.WAITING,
        "requests or constraints of its pods cannot be read",
        Level.ERROR,
        Category.INVALID,
        "write nodeSelector, affinity and tolerations as Kubernetes has them (kubectl explain pod.spec.affinity)",
        unreachable=True,
    )
    NODES_REFUSED = Row(
        "NodesRefused",
        Group.WAITING,
        "the only nodes that are large enough are those that the scheduler has refused to its pods",
        Level.WARNING,
        Category.UNSCHEDULABLE,
        "see why the cluster's scheduler refuses these nodes (anti-affinity, ports, volumes, taints); it tries again",
    )
    NODES_UNAVAILABLE = Row(
        "NodesUnavailable",
        Group.WAITING,
        "it would fit with nodes that are cordoned or not ready",
        Level.WARNING,
        Category.UNSCHEDULABLE,
        "see kubectl get nodes: it starts when they are ready and uncordoned (kubectl uncordon NODE), or others come",
    )
    QUEUE_NOT_FOUND = Row(
        "QueueNotFound",
        Group.WAITING,
        "it names a queue that does not exist",
        Level.ERROR,
        Category.QUEUE,
        "name a queue that tf-dist queues lists, or have this one made; the job starts as soon as it is there",
    )
    NAMESPACE_MISMATCH = Row(
        "NamespaceMismatch",
        Group.WAITING,
        "its queue is not open to its namespace",
        Level.ERROR,
        Category.QUEUE,
        "name a queue that is open to this namespace (tf-dist queues -o wide), or ask the cluster's administrator to"
        " label the namespace or to change the queue; the job starts as soon as they match",
    )
    PRIORITY_CLASS_REFUSED = Row(
        "PriorityClassRefused",
        Group.WAITING,
        "it names a priority class that its queue does not take, or one that starts with `system-`",
        Level.ERROR,
        Category.QUEUE,
        "name a priority class that the queue takes (kubectl get queues -o yaml), or none; it starts as soon as it may",
    )
    GANG_SCHEDULER_MISSING = Row(
        "GangSchedulerMissing",
        Group.WAITING,
        "the gang scheduler that it names is not installed, or tf-dist may not use it",
        Level.ERROR,
        Category.SCHEDULER_MISSING,
        "install it, and grant tf-dist its objects (value gangSchedulers of the Helm chart); or name another one",
    )
    QUEUE_REFUSED = Row(
        "QueueRefused",
        Group.WAITING,
        "the gang scheduler that it names does not serve its queue",
        Level.ERROR,
        Category.QUEUE,
        "name a queue that the gang scheduler serves, or have this one made; the job starts as soon as it is there",
    )
    DEACTIVATED = Row(
        "Deactivated",
        Group.WAITING,
        "it is switched off in the gang scheduler that it names",
        Level.WARNING,
        Category.ADMISSION,
        "who switched it off can switch it on again; until then it waits outside its queue",
    )
    BACKOFF = Row(
        "Backoff",
        Group.WAITING,
        "it lost its admission, and pauses before it asks for another",
        Level.WARNING,
        Category.SCHEDULE_TIMEOUT,
        "it gave its place back the last time: see why, and what the cluster's scheduler said (kubectl get events)",
    )
    SCHEDULE_TIMEOUT = Row(
        "ScheduleTimeout",
        Group.WAITING,
        "not all of its pods found their nodes in time, so its admission was taken back",
        Level.WARNING,
        Category.SCHEDULE_TIMEOUT,
        "see what the cluster's scheduler said; a longer scheduleTimeoutSeconds waits for nodes that come late",
    )
    PODS_REJECTED = Row(
        "PodsRejected",
        Group.WAITING,
        "the API server refuses its pods, or finds another of its objects invalid",
        Level.ERROR,
        Category.REFUSED,
        "mend the job, which then starts without a pause, or have the cluster allow it: it is tried again by itself",
        advice_at_end="mend what the message names, and submit the job anew",
        cuts_pods_short=True,
    )
    NAME_CONFLICT = Row(
        "NameConflict",
        Group.WAITING,
        "an object that does not belong to the job has the name of one of its pods or Services",
        Level.ERROR,
        Category.REFUSED,
        "submit the job under another name, or ask the owner of that object to remove it: the job is then tried again",
    )
    PREEMPTED = Row(
        "Preempted",
        Group.WAITING,
        "a job of higher priority was admitted in its place",
        Level.WARNING,
        Category.PREEMPTED,
        "it starts again when there is room; a higher priority class protects it, checkpoints save its work",
        advice_at_end="its policy for PodEvicted ended it: RestartJob would have it wait for another place",
        outcome=OutcomeKind.PREEMPTED,
        charged=False,
    )
    RECOVERY_TIMEOUT = Row(
        "RecoveryTimeout",
        Group.WAITING,
        "it lacked lost nodes for too long, so its admission was taken back",
        Level.WARNING,
        Category.NODE_LOST,
        "it starts again, with the age it has, when there is room for all of it; fewer workers may do with"
        " tf-dist.dev/min-workers, and tf-dist.dev/recovery-timeout says how long it waits for lost nodes",
        charged=False,
    )
    EVICTED = Row(
        "Evicted",
        Group.WAITING,
        "pods were taken away, and its ``on-eviction`` policy has it wait for another admission",
        Level.WARNING,
        Category.EVICTION,
        "it starts again when there is room, as its on-eviction policy says; checkpoints save its work",
    )
    WAITING_FOR_LOST_NODE = Row(
        "WaitingForLostNode",
        Group.WAITING,
        "a pod on a node that was lost may still run, so the next attempt cannot start yet",
        Level.ERROR,
        Category.NODE_LOST,
        f"kubectl delete node NODE, or kubectl taint nodes NODE {OUT_OF_SERVICE}, once it is surely down; a finalizer"
        " is removed by its owner; the job starts elsewhere as soon as the pod is gone",
    )

    # On its way.
    JOB_CREATED = Row("JobCreated", Group.STATE, "the job was accepted, and nothing is decided yet", is_event=False)
    ADMITTED = Row("Admitted", Group.STATE, "the gang is admitted; its pods are created")
    PODS_PENDING = Row("PodsPending", Group.STATE, "its pods are created and do not run yet", is_event=False)
    JOB_RUNNING = Row("JobRunning", Group.STATE, "it runs; the message says how many replicas do", is_event=False)
    UNSCHEDULABLE = Row(
        "Unschedulable",
        Group.STATE,
        "it is admitted, and the cluster's scheduler has no node for so many pods that the gang lacks its minimum",
        Level.WARNING,
        Category.UNSCHEDULABLE,
        "it has its quota, and no place yet: free or add nodes, or let it begin with fewer pods (minAvailable); after"
        " scheduleTimeoutSeconds it gives its quota back and tries again",
    )
    UNPINNED = Row(
        "Unpinned", Group.STATE, "the scheduler refused nodes that admission had chosen; the pods may go to any"
    )
    RESIZED = Row("Resized", Group.STATE, "its number of workers was changed", charged=False)
    SUSPENDED = Row(
        "Suspended",
        Group.STATE,
        "its user has stopped it",
        category=Category.SUSPENDED,
        advice="tf-dist resume starts it again",
        outcome=OutcomeKind.SUSPENDED,
    )
    RESUMED = Row("Resumed", Group.STATE, "its user has resumed it, and it waits for its admission")
    COMMAND_ISSUED = Row(
        "CommandIssued",
        Group.STATE,
        "a Command of Volcano was carried out",
        is_event=False,  # it has its own
    )
    ADOPTED = Row("Adopted", Group.STATE, "another operator had ended or stopped it before tf-dist came")
    INVALID_SPEC = Row(
        "InvalidSpec",
        Group.STATE,
        "its present spec cannot be read",
        Level.WARNING,
        Category.INVALID,
        "mend it (kubectl edit, or apply a file that tf-dist validate accepts): that takes effect at once",
        outcome=OutcomeKind.INVALID,
    )
    RECONCILE_FAILED = Row(
        "ReconcileFailed",
        Group.STATE,
        "passes over the job fail, several in a row; the message is the error",
        Level.ERROR,
        Category.REFUSED,
        "mend what is refused; it is tried again at least every 30 s, and goes on as soon as that works",
    )

    # What keeps a container from running: Kubernetes' words.
    CRASH_LOOP_BACK_OFF = Row(
        "CrashLoopBackOff",
        Group.CONTAINER,
        "a container ends again and again, and the kubelet pauses before it starts it again",
        Level.WARNING,
        Category.FAILURE,
        "the log of the run before says why",
    )
    CREATE_CONTAINER_CONFIG_ERROR = Row(
        "CreateContainerConfigError",
        Group.CONTAINER,
        "a ConfigMap, a Secret or a key of one that a container needs is missing",
        Level.WARNING,
        Category.CONFIGURATION,
        "check volumes, config maps and secrets",
        permanent=True,
    )
    CREATE_CONTAINER_ERROR = Row(
        "CreateContainerError",
        Group.CONTAINER,
        "the container runtime cannot create a container",
        Level.WARNING,
        Category.CONFIGURATION,
        "check volumes, config maps and secrets",
        permanent=True,
    )
    RUN_CONTAINER_ERROR = Row(
        "RunContainerError",
        Group.CONTAINER,
        "the container runtime cannot start a container",
        Level.WARNING,
        Category.COMMAND,
        "check command and args of the container, and that the image has the program",
    )
    IMAGE_PULL_BACK_OFF = Row(
        "ImagePullBackOff",
        Group.CONTAINER,
        "an image cannot be pulled, and the kubelet pauses before it tries again",
        Level.WARNING,
        Category.IMAGE,
        "check the image's name and tag, and the pull secret",
    )
    INVALID_IMAGE_NAME = Row(
        "InvalidImageName",
        Group.CONTAINER,
        "an image's name is malformed",
        Level.WARNING,
        Category.IMAGE,
        "check the image's name and tag, and the pull secret",
        permanent=True,
    )
    IMAGE_INSPECT_ERROR = Row(
        "ImageInspectError",
        Group.CONTAINER,
        "the container runtime cannot read an image",
        Level.WARNING,
        Category.IMAGE,
        "check the image's name and tag, and the pull secret",
    )
    ERR_IMAGE_NEVER_PULL = Row(
        "ErrImageNeverPull",
        Group.CONTAINER,
        "an image is not on the node, and ``imagePullPolicy: Never`` forbids to pull it",
        Level.WARNING,
        Category.IMAGE,
        "check the image's name and tag, and the pull secret",
        permanent=True,
    )
    ERR_IMAGE_ENTRYPOINT = Row(
        "ErrImageEntrypoint",
        Group.CONTAINER,
        "a container has no command, and its image has none to run (a local node has no images)",
        Level.WARNING,
        Category.IMAGE,
        "set command in the container, or tf-dist run --entrypoint IMAGE='…'",
        permanent=True,
    )

    # How a job ended, or why replicas start again.
    JOB_SUCCEEDED = Row(
        "JobSucceeded",
        Group.END,
        "the replicas that decide about its success have succeeded",
        outcome=OutcomeKind.SUCCEEDED,
    )
    MIN_SUCCESS = Row(
        "MinSuccess",
        Group.END,
        "as many replicas have succeeded as its ``minSuccess`` asks for",
        outcome=OutcomeKind.SUCCEEDED,
    )
    POD_FAILED = Row("PodFailed", Group.END, "a replica failed", Level.ERROR)
    POD_EVICTED = Row(
        "PodEvicted",
        Group.END,
        "a pod was taken away",
        Level.WARNING,
        Category.EVICTION,
        "give the job a higher priority, or a policy that restarts it",
        outcome=OutcomeKind.EVICTED,
    )
    POD_PENDING = Row(
        "PodPending",
        Group.END,
        "a pod did not start in the time that a policy of the job gives it",
        Level.WARNING,
        outcome=OutcomeKind.START_TIMEOUT,
    )
    NODE_LOST = Row(
        "NodeLost",
        Group.END,
        "a node was lost",
        Level.WARNING,
        Category.EVICTION,
        "look at the node; a policy for PodEvicted would restart the job",
        outcome=OutcomeKind.EVICTED,
    )
    TASK_COMPLETED = Row("TaskCompleted", Group.END, "a task was completed, which a policy answers")
    TASK_FAILED = Row(
        "TaskFailed",
        Group.END,
        "a task has spent its ``maxRetry``",
        Level.ERROR,
        outcome=OutcomeKind.BACKOFF_LIMIT_EXCEEDED,
    )
    UNKNOWN = Row(
        "Unknown",
        Group.END,
        "a part of the gang runs that is less than its minimum, and no node is found for another",
        Level.WARNING,
    )
    BACKOFF_LIMIT_EXCEEDED = Row(
        "BackoffLimitExceeded",
        Group.END,
        "no restart is left",
        Level.ERROR,
        Category.BUDGET,
        "look at the log of the replica that kept failing, or raise the limit",
        outcome=OutcomeKind.BACKOFF_LIMIT_EXCEEDED,
        cuts_pods_short=True,
    )
    DEADLINE_EXCEEDED = Row(
        "DeadlineExceeded",
        Group.END,
        "it was active for longer than ``activeDeadlineSeconds``",
        Level.ERROR,
        Category.DEADLINE,
        "raise activeDeadlineSeconds, or find out what takes so long",
        outcome=OutcomeKind.DEADLINE_EXCEEDED,
        cuts_pods_short=True,
    )
    MAX_DISRUPTIONS_EXCEEDED = Row(
        "MaxDisruptionsExceeded",
        Group.END,
        "its pods were taken away more often than it bears",
        Level.ERROR,
        Category.EVICTION,
        f"see who drains, preempts or deletes its pods; {MAX_DISRUPTIONS} allows more, a higher priority protects it",
        outcome=OutcomeKind.EVICTED,
        cuts_pods_short=True,
    )
    START_TIMEOUT = Row(
        "StartTimeout",
        Group.END,
        "it was admitted and did not run within its ``tf-dist.dev/startup-timeout``",
        Level.ERROR,
        Category.DEADLINE,
        f"see what the message names (an image, a volume, a Secret); {STARTUP_TIMEOUT} says how long it may take",
        outcome=OutcomeKind.START_TIMEOUT,
        cuts_pods_short=True,
    )
    REPLICA_SUCCEEDED = Row(
        "ReplicaSucceeded",
        Group.END,
        "the last failure of a job that ended, because its restart policy starts replicas again that have succeeded",
        advice="nothing failed: restartPolicy OnFailure or Never lets a replica that has succeeded rest",
    )

    # Of Events only.
    TFJOB_SUSPENDED = Row(
        "TFJobSuspended", Group.EVENT, "a TFJob ``v1`` is suspended (in the training operator's words)"
    )
    TFJOB_RESUMED = Row("TFJobResumed", Group.EVENT, "it is resumed")
    TFJOB_RESTARTING = Row("TFJobRestarting", Group.EVENT, "replicas of it failed and start again", Level.WARNING)
    TFJOB_SUCCEEDED = Row("TFJobSucceeded", Group.EVENT, "it has succeeded")
    TFJOB_FAILED = Row("TFJobFailed", Group.EVENT, "it has failed", Level.ERROR)
    EXITED_WITH_CODE = Row("ExitedWithCode", Group.EVENT, "a pod has ended, with this exit code")
    CONTAINER_RESTARTED = Row(
        "ContainerRestarted",
        Group.EVENT,
        "the kubelet has restarted a container in its pod, which changes no state of the job",
        Level.WARNING,
    )
    SUCCESSFUL_CREATE_POD = Row("SuccessfulCreatePod", Group.EVENT, "a pod was created")
    SUCCESSFUL_DELETE_POD = Row("SuccessfulDeletePod", Group.EVENT, "a pod was deleted")
    SUCCESSFUL_CREATE_SERVICE = Row("SuccessfulCreateService", Group.EVENT, "a service was created")
    SUCCESSFUL_DELETE_SERVICE = Row("SuccessfulDeleteService", Group.EVENT, "a service was deleted")
    FAILED_CREATE_POD = Row(
        "FailedCreatePod", Group.EVENT, "a pod could not be created; the message is the server's", Level.WARNING
    )
    FAILED_DELETE_POD = Row("FailedDeletePod", Group.EVENT, "a pod could not be deleted", Level.WARNING)
    FAILED_CREATE_SERVICE = Row("FailedCreateService", Group.EVENT, "a service could not be created", Level.WARNING)
    FAILED_DELETE_SERVICE = Row("FailedDeleteService", Group.EVENT, "a service could not be deleted", Level.WARNING)
    SET_POD_TEMPLATE_RESTART_POLICY = Row(
        "SetPodTemplateRestartPolicy",
        Group.EVENT,
        "a pod template has a restart policy, which that of the replica overrides",
        Level.WARNING,
    )
    SET_POD_TEMPLATE_SCHEDULER_NAME = Row(
        "SetPodTemplateSchedulerName",
        Group.EVENT,
        "a pod template names another scheduler than the gang scheduler, and keeps it",
        Level.WARNING,
    )
    SPEC_ACCEPTED = Row("SpecAccepted", Group.EVENT, "a spec that could not be read is mended and in force")
    UNKNOWN_FIELDS = Row("UnknownFields", Group.EVENT, "the spec has fields that nothing reads", Level.WARNING)
    NODES_REASSIGNED = Row(
        "NodesReassigned",
        Group.EVENT,
        "nodes that were assigned to the job do not take pods any more; its new pods go to others",
    )
    ANNOTATIONS_NOT_USED = Row(
        "AnnotationsNotUsed",
        Group.EVENT,
        "a Volcano Job has annotations that are not used here",
        Level.WARNING,
    )
    SCHEDULER_NAME_NOT_USED = Row(
        "SchedulerNameNotUsed",
        Group.EVENT,
        "a Volcano Job names Volcano's scheduler; the default one places its pods",
    )
    NEWER_STATUS_FORMAT = Row(
        "NewerStatusFormat",
        Group.EVENT,
        "a newer release wrote the job's status; this one leaves the job as it is",
        Level.ERROR,
        Category.NEWER_FORMAT,
    )


_ROWS: Final[Mapping[str, Row]] = {reason.value: reason.row for reason in Reason}


def reason_row(word: str) -> Row:
    """The row of a word; of a word that other controllers wrote, a row without consequences."""
    return _ROWS.get(word) or Row(word, Group.STATE, "")


# The kubelet alternates between the two, every few minutes at last.
_SAME_REASON: Final = {"ErrImagePull": Reason.IMAGE_PULL_BACK_OFF}
HOLDING_REASONS: Final = frozenset(reason for reason in Reason if reason.row.group is Group.CONTAINER)


def stable_reason(reason: str) -> str:
    """The reason of a container that waits, the same for states between which a kubelet alternates."""
    return _SAME_REASON.get(reason, reason)


CONDITIONS: Final[Mapping[str, str]] = {
    "SpecAccepted": "whether the present spec is in force; False: it cannot be read, and the last accepted one stays",
    "Admitted": "whether the gang is admitted; its reason says why it waits",
    "Stalled": "present while the job cannot go on, with the error that keeps it from that",
    "Created": "the controller has accepted the job",
    "Running": "all replicas that have to run do so",
    "Restarting": "replicas failed and start again",
    "Suspended": "the job is stopped and may be resumed",
    "Succeeded": "the job is over and has succeeded",
    "Failed": "the job is over and has not succeeded",
}
"""The conditions of a TFJob, for the reference."""
