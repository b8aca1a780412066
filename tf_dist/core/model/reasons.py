"""The registry of reasons of jobs, containers and Events, with their consequences.

A reason is a member of ``Reason`` and has one row. Statuses, conditions, Events, diagnoses, outcomes and the reference
(``docs/reference/reasons.md``) read the row. No other module maps reasons to other values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final, Self

from tf_dist.core.model.names import MAX_DISRUPTIONS, STARTUP_TIMEOUT

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"


class Level(StrEnum):
    """Severity of a reason, and of a diagnosis."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Category(StrEnum):
    """Category of a diagnosis. A contract for tools: values may be added, and are never renamed."""

    ADMISSION = "waits-for-admission"
    NEVER_FITS = "never-fits"
    QUOTA = "quota-exceeded"
    QUEUE = "queue-not-found"
    SCHEDULER_MISSING = "gang-scheduler-missing"
    RESERVED = "capacity-is-reserved"
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
    """How a job ended, or why a client stopped waiting for it. A contract: values are added, and never renamed."""

    SUCCEEDED = "succeeded"  # its success policy is met
    FAILED = "failed"  # a replica failed, or a policy ended the job after a failure
    EVICTED = "evicted"  # its pods were disrupted, and a policy or the limit of disruptions ended it
    PREEMPTED = "preempted"  # a job of higher priority preempted it, and a policy ended it
    DEADLINE_EXCEEDED = "deadline_exceeded"  # it exceeded its own deadline, or the limit of the task, step or command
    BACKOFF_LIMIT_EXCEEDED = "backoff_limit_exceeded"  # no restart was left
    ADMISSION_TIMEOUT = "admission_timeout"  # it was not admitted within the limit of the task or step
    START_TIMEOUT = "start_timeout"  # it was admitted and did not run within its startup timeout
    IMAGE_PULL_FAILED = "image_pull_failed"  # an image cannot be pulled, so it never ran
    INVALID = "invalid"  # its spec was never valid
    SUSPENDED = "suspended"  # a user suspended it
    DELETED = "deleted"  # a user deleted it
    UNKNOWN = "unknown"  # the client stopped waiting; the job may continue


DISRUPTED: Final = frozenset({OutcomeKind.EVICTED, OutcomeKind.PREEMPTED})


class Group(StrEnum):
    """The subject of a reason; the values are the headings of the reference."""

    WAITING = "Reasons why a job waits"
    STATE = "Reasons of a job's state"
    CONTAINER = "Reasons of containers that cannot run, in the kubelet's words"
    END = "Reasons why a job ended, or why replicas start again"
    EVENT = "Further reasons of Events"


@dataclass(frozen=True, slots=True)
class Row:
    """The consequences of a reason."""

    group: Group
    word: str
    """The reason as written. A contract: reasons may be added, and are never renamed."""
    level: Level = Level.INFO
    """The severity. Reasons above INFO have an Event of type Warning."""
    category: Category | None = None
    """The category of its diagnosis."""
    meaning: str = ""
    """One sentence for the reference."""
    advice: str = ""
    """What a user can do about it."""
    advice_at_end: str = ""
    """The advice after the job has ended for this reason; "": ``advice``."""
    outcome: OutcomeKind = OutcomeKind.FAILED
    """The outcome of a job that ended, or was stopped, for this reason."""
    is_event: bool = True
    """Whether an Event is recorded when a job gets this reason."""
    cuts_pods_short: bool = False
    """Whether running pods stop when a job ends for this reason, although ``cleanPodPolicy: None`` would keep them."""
    charged: bool = True
    """Whether a restart for this reason counts against the restart budget."""
    unreachable: bool = False
    """Whether the gang can start only after a change of the job or of the nodes, independent of the load."""
    permanent: bool = False
    """For a container: whether another pod of the same template would fail as well."""

    @property
    def event_type(self) -> str:
        """The type of its Kubernetes Event."""
        return "Normal" if self.level is Level.INFO else "Warning"


_waits = partial(Row, Group.WAITING)
_state = partial(Row, Group.STATE)
_container = partial(Row, Group.CONTAINER)
_ends = partial(Row, Group.END)
_event = partial(Row, Group.EVENT)
_INFO, _WARNING, _ERROR = Level


class Reason(StrEnum):
    """Every reason that tf-dist writes or acts on; ``row`` has the consequences."""

    row: Row

    def __new__(cls, row: Row) -> Self:
        """The member of a row; its value is the word."""
        member = str.__new__(cls, row.word)
        member._value_ = row.word
        member.row = row
        return member

    # fmt: off

    # Why a job waits for admission.
    WAITING_FOR_CAPACITY = _waits("WaitingForCapacity", _INFO, Category.ADMISSION,
        meaning="the cluster has no free capacity for the whole gang at present",
        advice="it starts when capacity for the whole gang is free")
    WAITING_IN_QUEUE = _waits("WaitingInQueue", _INFO, Category.ADMISSION,
        meaning="other gangs of its queue are admitted first",
        advice="it starts when capacity for the whole gang is free")
    RESERVED = _waits("Reserved", _INFO, Category.RESERVED,
        meaning="the free capacity is reserved for a gang that has waited longer",
        advice="wait, or set tf-dist.dev/expected-duration: a short job may start before that gang")
    PREEMPTING = _waits("Preempting", _INFO, Category.ADMISSION,
        meaning="jobs of lower priority are preempted for it",
        advice="it starts when the pods of the preempted jobs are deleted")
    QUOTA_EXCEEDED = _waits("QuotaExceeded", _INFO, Category.QUOTA,
        meaning="the quota of its queue, and what the queue may borrow, is in use",
        advice="it starts when jobs of its queue end; tf-dist queues shows the use of each queue, and an administrator"
        " may raise the quota")
    RESOURCE_QUOTA_EXCEEDED = _waits("ResourceQuotaExceeded", _INFO, Category.QUOTA,
        meaning="a ResourceQuota of its namespace has not enough left for all of its pods",
        advice="it starts when pods of its namespace end or the quota is raised (kubectl describe resourcequota)")
    NEVER_FITS = _waits("NeverFits", _ERROR, Category.NEVER_FITS, outcome=OutcomeKind.INVALID, unreachable=True,
        meaning="the gang does not fit into the cluster or its queue, even if nothing else runs",
        advice="ask for less or for fewer replicas, or add nodes")
    UNREADABLE = _waits("Unreadable", _ERROR, Category.INVALID, unreachable=True,
        meaning="requests or scheduling constraints of its pods are malformed",
        advice="correct nodeSelector, affinity and tolerations (kubectl explain pod.spec.affinity)")
    NODES_REFUSED = _waits("NodesRefused", _WARNING, Category.UNSCHEDULABLE,
        meaning="the scheduler has refused its pods all nodes that are large enough",
        advice="find out why the scheduler refuses these nodes: anti-affinity, ports, volumes, taints. They are tried"
        " again later")
    NODES_UNAVAILABLE = _waits("NodesUnavailable", _WARNING, Category.UNSCHEDULABLE,
        meaning="it would fit on nodes that are cordoned or not ready",
        advice="check kubectl get nodes: it starts when these nodes are ready and uncordoned (kubectl uncordon NODE),"
        " or when others are added")
    QUEUE_NOT_FOUND = _waits("QueueNotFound", _ERROR, Category.QUEUE,
        meaning="it names a queue that does not exist",
        advice="name a queue that tf-dist queues lists, or ask an administrator to create it; the job starts then")
    NAMESPACE_MISMATCH = _waits("NamespaceMismatch", _ERROR, Category.QUEUE,
        meaning="its queue is not open to its namespace",
        advice="name a queue that is open to this namespace (tf-dist queues -o wide), or ask an administrator to label"
        " the namespace or to change the queue; the job starts then")
    PRIORITY_CLASS_REFUSED = _waits("PriorityClassRefused", _ERROR, Category.QUEUE,
        meaning="it names a priority class that its queue does not accept, or that starts with `system-`",
        advice="name a priority class that the queue accepts (kubectl get queues -o yaml), or none")
    GANG_SCHEDULER_MISSING = _waits("GangSchedulerMissing", _ERROR, Category.SCHEDULER_MISSING,
        meaning="its gang scheduler is not installed, or tf-dist lacks rights to its objects",
        advice="install the scheduler and grant the rights (value gangSchedulers of the Helm chart), or name another"
        " scheduler")
    QUEUE_REFUSED = _waits("QueueRefused", _ERROR, Category.QUEUE,
        meaning="its gang scheduler does not serve its queue",
        advice="name a queue of the gang scheduler, or ask an administrator to create this one; the job starts then")
    DEACTIVATED = _waits("Deactivated", _WARNING, Category.ADMISSION,
        meaning="it is deactivated in its gang scheduler",
        advice="activate it there; until then it waits outside its queue")
    BACKOFF = _waits("Backoff", _WARNING, Category.SCHEDULE_TIMEOUT,
        meaning="it lost its admission and pauses before it asks for another",
        advice="find out why it lost its admission, and what the scheduler reports: kubectl get events")
    SCHEDULE_TIMEOUT = _waits("ScheduleTimeout", _WARNING, Category.SCHEDULE_TIMEOUT,
        meaning="not all of its pods got nodes in time, so it lost its admission",
        advice="read what the scheduler reports; a longer scheduleTimeoutSeconds waits for late nodes")
    PODS_REJECTED = _waits("PodsRejected", _ERROR, Category.REFUSED, cuts_pods_short=True,
        meaning="the API server refuses its pods, or finds another of its objects invalid",
        advice="correct the job, which then starts at once, or change the cluster's rule; it is retried automatically",
        advice_at_end="correct what the message names, and submit the job again")
    NAME_CONFLICT = _waits("NameConflict", _ERROR, Category.REFUSED,
        meaning="an object of another owner has the name of one of its pods or Services",
        advice="submit the job under another name, or delete that object; the job is then tried again")
    PREEMPTED = _waits("Preempted", _WARNING, Category.PREEMPTED, outcome=OutcomeKind.PREEMPTED, charged=False,
        meaning="a job of higher priority preempted it",
        advice="it starts again when capacity is free; a higher priority class protects it, checkpoints save its work",
        advice_at_end="its policy for PodEvicted ended it; with RestartJob it would wait for another admission")
    RECOVERY_TIMEOUT = _waits("RecoveryTimeout", _WARNING, Category.NODE_LOST, charged=False,
        meaning="it lacked lost nodes for too long, so it lost its admission",
        advice="it keeps its age and starts again when capacity for the whole gang is free; with"
        " tf-dist.dev/min-workers it could continue with fewer workers, and tf-dist.dev/recovery-timeout sets the time")
    EVICTED = _waits("Evicted", _WARNING, Category.EVICTION,
        meaning="pods were evicted, and by its ``on-eviction`` policy it waits for another admission",
        advice="it starts again when capacity is free; checkpoints save its work")
    WAITING_FOR_LOST_NODE = _waits("WaitingForLostNode", _ERROR, Category.NODE_LOST,
        meaning="a pod on a lost node may still run, so the next attempt cannot start yet",
        advice=f"if the node is down for sure: kubectl delete node NODE, or kubectl taint nodes NODE {OUT_OF_SERVICE}."
        " If the pod has a finalizer, its owner must remove it. The job starts elsewhere when the pod is deleted")

    # The state of a job that has not ended.
    JOB_CREATED = _state("JobCreated", is_event=False, meaning="the job was accepted; nothing is decided yet")
    ADMITTED = _state("Admitted", meaning="the gang is admitted; its pods are created")
    PODS_PENDING = _state("PodsPending", is_event=False, meaning="its pods are created and do not run yet")
    JOB_RUNNING = _state("JobRunning", is_event=False, meaning="it runs; the message says how many replicas do")
    UNSCHEDULABLE = _state("Unschedulable", _WARNING, Category.UNSCHEDULABLE,
        meaning="it is admitted, and the scheduler has no nodes for the minimum of its gang",
        advice="free or add nodes, or let it start with fewer pods (minAvailable); after scheduleTimeoutSeconds it"
        " gives its quota back and tries again")
    UNPINNED = _state("Unpinned",
        meaning="the scheduler refused the assigned nodes, so the pods may go to any node")
    RESIZED = _state("Resized", charged=False, meaning="its number of workers was changed")
    SUSPENDED = _state("Suspended", _INFO, Category.SUSPENDED, outcome=OutcomeKind.SUSPENDED,
        meaning="a user suspended it",
        advice="tf-dist resume starts it again")
    RESUMED = _state("Resumed", meaning="a user resumed it, and it waits for admission")
    COMMAND_ISSUED = _state("CommandIssued", is_event=False, meaning="a Command of Volcano was executed")
    ADOPTED = _state("Adopted", meaning="another operator had ended or stopped it before tf-dist was installed")
    INVALID_SPEC = _state("InvalidSpec", _WARNING, Category.INVALID, outcome=OutcomeKind.INVALID,
        meaning="its present spec cannot be read",
        advice="correct it with kubectl edit, or apply a file that tf-dist validate accepts; that takes effect at once")
    RECONCILE_FAILED = _state("ReconcileFailed", _ERROR, Category.REFUSED,
        meaning="several reconciles in a row failed; the message is the error",
        advice="remove the cause; tf-dist tries again at least every 30 s")

    # Why a container cannot run, in the words of Kubernetes.
    CRASH_LOOP_BACK_OFF = _container("CrashLoopBackOff", _WARNING, Category.FAILURE,
        meaning="a container ends again and again, and the kubelet pauses before it starts it again",
        advice="read the log of the previous attempt: tf-dist logs JOB --previous")
    CREATE_CONTAINER_CONFIG_ERROR = _container("CreateContainerConfigError", _WARNING, Category.CONFIGURATION,
        permanent=True,
        meaning="a ConfigMap, a Secret or a key of one that a container needs is missing, or its user is not allowed",
        advice="check volumes, config maps and secrets")
    CREATE_CONTAINER_ERROR = _container("CreateContainerError", _WARNING, Category.CONFIGURATION, permanent=True,
        meaning="the container runtime cannot create a container",
        advice="check volumes, config maps and secrets")
    RUN_CONTAINER_ERROR = _container("RunContainerError", _WARNING, Category.COMMAND,
        meaning="the container runtime cannot start a container",
        advice="check command, args and workingDir of the container, and that the image has the program")
    IMAGE_PULL_BACK_OFF = _container("ImagePullBackOff", _WARNING, Category.IMAGE,
        meaning="an image cannot be pulled, and the kubelet pauses before it tries again",
        advice="check the image's name and tag, and the pull secret")
    INVALID_IMAGE_NAME = _container("InvalidImageName", _WARNING, Category.IMAGE, permanent=True,
        meaning="an image's name is malformed",
        advice="check the image's name and tag, and the pull secret")
    IMAGE_INSPECT_ERROR = _container("ImageInspectError", _WARNING, Category.IMAGE,
        meaning="the container runtime cannot read an image",
        advice="check the image's name and tag, and the pull secret")
    ERR_IMAGE_NEVER_PULL = _container("ErrImageNeverPull", _WARNING, Category.IMAGE, permanent=True,
        meaning="an image is not on the node, and ``imagePullPolicy: Never`` forbids pulling it",
        advice="check the image's name and tag, and the pull secret")
    ERR_IMAGE_ENTRYPOINT = _container("ErrImageEntrypoint", _WARNING, Category.IMAGE, permanent=True,
        meaning="neither the container nor its image has a command (a local node has no images)",
        advice="set command in the container, or tf-dist run --entrypoint IMAGE='…'")

    # How a job ended, or why replicas start again.
    JOB_SUCCEEDED = _ends("JobSucceeded", outcome=OutcomeKind.SUCCEEDED,
        meaning="the replicas that decide about success have succeeded")
    MIN_SUCCESS = _ends("MinSuccess", outcome=OutcomeKind.SUCCEEDED,
        meaning="``minSuccess`` replicas have succeeded")
    POD_FAILED = _ends("PodFailed", _ERROR, meaning="a replica failed")
    POD_EVICTED = _ends("PodEvicted", _WARNING, Category.EVICTION, outcome=OutcomeKind.EVICTED,
        meaning="a pod was disrupted: evicted, preempted, deleted, or lost with its node",
        advice="give the job a higher priority, or a policy that restarts it")
    POD_PENDING = _ends("PodPending", _WARNING, outcome=OutcomeKind.START_TIMEOUT,
        meaning="a pod did not start within the time of a policy")
    NODE_LOST = _ends("NodeLost", _WARNING, Category.EVICTION, outcome=OutcomeKind.EVICTED,
        meaning="a node was lost",
        advice="check the node; a policy for PodEvicted would restart the job")
    TASK_COMPLETED = _ends("TaskCompleted", meaning="a task was completed, and a policy reacted")
    TASK_FAILED = _ends("TaskFailed", _ERROR, outcome=OutcomeKind.BACKOFF_LIMIT_EXCEEDED,
        meaning="a task has spent its ``maxRetry``")
    UNKNOWN = _ends("Unknown", _WARNING,
        meaning="fewer pods than the minimum run, and the scheduler finds no nodes for others")
    BACKOFF_LIMIT_EXCEEDED = _ends("BackoffLimitExceeded", _ERROR, Category.BUDGET,
        outcome=OutcomeKind.BACKOFF_LIMIT_EXCEEDED, cuts_pods_short=True,
        meaning="no restart is left",
        advice="read the log of the replica that failed, or raise the limit")
    DEADLINE_EXCEEDED = _ends("DeadlineExceeded", _ERROR, Category.DEADLINE,
        outcome=OutcomeKind.DEADLINE_EXCEEDED, cuts_pods_short=True,
        meaning="it was active for longer than ``activeDeadlineSeconds``",
        advice="raise activeDeadlineSeconds, or find out what takes this long")
    MAX_DISRUPTIONS_EXCEEDED = _ends("MaxDisruptionsExceeded", _ERROR, Category.EVICTION,
        outcome=OutcomeKind.EVICTED, cuts_pods_short=True,
        meaning="its pods were disrupted more often than allowed",
        advice=f"find out what drains, preempts or deletes its pods; {MAX_DISRUPTIONS} allows more disruptions, and a"
        " higher priority protects it")
    START_TIMEOUT = _ends("StartTimeout", _ERROR, Category.DEADLINE,
        outcome=OutcomeKind.START_TIMEOUT, cuts_pods_short=True,
        meaning="it was admitted and did not run within its ``tf-dist.dev/startup-timeout``",
        advice=f"check what the message names: an image, a volume, a Secret; {STARTUP_TIMEOUT} sets the time")
    REPLICA_SUCCEEDED = _ends("ReplicaSucceeded",
        meaning="its restart policy restarts replicas that have succeeded, until no restart is left",
        advice="nothing failed; use restartPolicy OnFailure or Never")

    # Reasons of Events only.
    TFJOB_SUSPENDED = _event("TFJobSuspended", meaning="a TFJob ``v1`` is suspended")
    TFJOB_RESUMED = _event("TFJobResumed", meaning="a TFJob ``v1`` is resumed")
    TFJOB_RESTARTING = _event("TFJobRestarting", _WARNING, meaning="replicas of a TFJob ``v1`` failed and start again")
    TFJOB_SUCCEEDED = _event("TFJobSucceeded", meaning="a TFJob ``v1`` has succeeded")
    TFJOB_FAILED = _event("TFJobFailed", _ERROR, meaning="a TFJob ``v1`` has failed")
    EXITED_WITH_CODE = _event("ExitedWithCode", meaning="a pod has ended, with this exit code")
    CONTAINER_RESTARTED = _event("ContainerRestarted", _WARNING,
        meaning="the kubelet restarted a container in its pod; the state of the job does not change")
    SUCCESSFUL_CREATE_POD = _event("SuccessfulCreatePod", meaning="a pod was created")
    SUCCESSFUL_DELETE_POD = _event("SuccessfulDeletePod", meaning="a pod was deleted")
    SUCCESSFUL_CREATE_SERVICE = _event("SuccessfulCreateService", meaning="a service was created")
    SUCCESSFUL_DELETE_SERVICE = _event("SuccessfulDeleteService", meaning="a service was deleted")
    FAILED_CREATE_POD = _event("FailedCreatePod", _WARNING,
        meaning="a pod could not be created; the message is the server's")
    FAILED_DELETE_POD = _event("FailedDeletePod", _WARNING, meaning="a pod could not be deleted")
    FAILED_CREATE_SERVICE = _event("FailedCreateService", _WARNING, meaning="a service could not be created")
    FAILED_DELETE_SERVICE = _event("FailedDeleteService", _WARNING, meaning="a service could not be deleted")
    SET_POD_TEMPLATE_RESTART_POLICY = _event("SetPodTemplateRestartPolicy", _WARNING,
        meaning="a pod template has a restart policy, which the replica's policy overrides")
    SET_POD_TEMPLATE_SCHEDULER_NAME = _event("SetPodTemplateSchedulerName", _WARNING,
        meaning="a pod template names another scheduler than the gang scheduler; it is kept")
    SPEC_ACCEPTED = _event("SpecAccepted", meaning="a corrected spec is in force")
    UNKNOWN_FIELDS = _event("UnknownFields", _WARNING, meaning="the spec has fields that nothing reads")
    NODES_REASSIGNED = _event("NodesReassigned",
        meaning="assigned nodes accept no more pods, so new pods go to other nodes")
    ANNOTATIONS_NOT_USED = _event("AnnotationsNotUsed", _WARNING,
        meaning="a Volcano Job has annotations that tf-dist does not use")
    SCHEDULER_NAME_NOT_USED = _event("SchedulerNameNotUsed",
        meaning="a Volcano Job names Volcano's scheduler; the default scheduler binds its pods")
    NEWER_STATUS_FORMAT = _event("NewerStatusFormat", _ERROR, Category.NEWER_FORMAT,
        meaning="a newer release wrote the job's status, so this release leaves the job alone")

    # fmt: on


_ROWS: Final[Mapping[str, Row]] = {reason.value: reason.row for reason in Reason}


def reason_row(word: str) -> Row:
    """The row of a reason; for a reason of another controller, a row without consequences."""
    return _ROWS.get(word) or Row(Group.STATE, word)


# The kubelet alternates between both reasons, eventually every few minutes.
_SAME_REASON: Final = {"ErrImagePull": Reason.IMAGE_PULL_BACK_OFF}
HOLDING_REASONS: Final = frozenset(reason for reason in Reason if reason.row.group is Group.CONTAINER)


def stable_reason(reason: str) -> str:
    """The reason of a waiting container. States between which a kubelet alternates have the same reason."""
    return _SAME_REASON.get(reason, reason)


CONDITIONS: Final[Mapping[str, str]] = {
    "SpecAccepted": "whether the current spec is in force; False: it is invalid, and the last accepted one stays",
    "Admitted": "whether the gang is admitted; the reason says why it waits",
    "Stalled": "present while reconciles of the job fail, with the error",
    "Created": "the controller has accepted the job",
    "Running": "all required replicas run",
    "Restarting": "replicas failed and start again",
    "Suspended": "the job is stopped and may be resumed",
    "Succeeded": "the job has ended and succeeded",
    "Failed": "the job has ended and failed",
}
"""The conditions of a TFJob, for the reference."""
