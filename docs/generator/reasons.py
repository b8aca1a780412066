"""Glossary of conditions, of the reasons of a job's state, and of the reasons of Events.

``docs/reference`` is made of it, with the advice of ``diagnose`` beside each reason; a test holds it against the code
that writes them (``tests/docs``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CONDITIONS: Final[Mapping[str, str]] = {
    "SpecAccepted": "whether the present spec is in force; False: it cannot be read, and the last accepted one stays",
    "Admitted": "whether the gang has a place; its reason says why it waits",
    "Stalled": "there while the job cannot go on, with the error that keeps it from that",
    "Created": "the job is known to its controller",
    "Running": "all replicas that have to run do so",
    "Restarting": "replicas failed and start again",
    "Suspended": "the job is stopped and may be resumed",
    "Succeeded": "the job is over and has succeeded",
    "Failed": "the job is over and has not succeeded",
}

REASONS: Final[Mapping[str, str]] = {
    # Why it waits for its place (``PendingReason``).
    "WaitingForCapacity": "the cluster has not room for the whole gang at present",
    "WaitingInQueue": "gangs before it in its queue have their turn first",
    "Reserved": "there is room, which is reserved for a gang that has waited longer",
    "Preempting": "jobs of lower priority are stopped to make room for it",
    "QuotaExceeded": "its queue's quota, with what it may borrow, is in use",
    "ResourceQuotaExceeded": "a ResourceQuota of its namespace has not enough left for all of its pods",
    "NeverFits": "the cluster, or its queue, could not hold the gang even if it were empty",
    "Unreadable": "requests or constraints of its pods cannot be read",
    "NodesRefused": "the only nodes that are large enough are those that the scheduler has refused it",
    "NodesUnavailable": "it would fit with nodes that are cordoned or not ready",
    "QueueNotFound": "it names a queue that does not exist",
    "NamespaceMismatch": "its queue is not open to its namespace",
    "PriorityClassRefused": "it names a priority class that its queue does not take, or one that starts with `system-`",
    "GangSchedulerMissing": "the gang scheduler that it names is not installed, or tf-dist may not use it",
    "QueueRefused": "the gang scheduler that it names does not serve its queue",
    "Deactivated": "it is switched off in the gang scheduler that it names",
    "Backoff": "it gave its place back, and pauses before it asks for another",
    "ScheduleTimeout": "not all of its pods found their nodes in time, so it gave its place back",
    "PodsRejected": "the API server refuses its pods, or finds another of its objects invalid",
    "NameConflict": "an object that does not belong to the job has the name of one of its pods or Services",
    "Preempted": "a job of higher priority has taken its place",
    "RecoveryTimeout": "it lacked lost nodes for too long, so it gave its place back",
    "Evicted": "pods were taken away, and its ``on-eviction`` policy has it wait for another place",
    "WaitingForLostNode": "a pod on a node that was lost may still run, so the next attempt cannot start yet",
    # On its way.
    "JobCreated": "the job has been accepted, and nothing is decided yet",
    "Admitted": "the gang is admitted; its pods are made",
    "PodsPending": "its pods are made and do not run yet",
    "JobRunning": "it runs; the message says how many replicas do",
    "Unschedulable": "it is admitted, and the cluster's scheduler has no node for so many pods that a minimum lacks",
    "Unpinned": "the scheduler refused nodes that admission had chosen; the pods may go to any",
    "Resized": "its number of workers was changed",
    "Suspended": "its user has stopped it",
    "Resumed": "its user has resumed it, and it waits for its place",
    "CommandIssued": "a Command of Volcano was carried out",
    "Adopted": "another operator had ended or stopped it before tf-dist came",
    "InvalidSpec": "its present spec cannot be read",
    "ReconcileFailed": "passes over the job fail, several in a row; the message is the error",
    # What keeps a container from running, in the kubelet's words.
    "CrashLoopBackOff": "a container ends again and again, and the kubelet pauses before it starts it anew",
    "CreateContainerConfigError": "a ConfigMap, a Secret or a key of one that a container needs is missing",
    "CreateContainerError": "the container runtime cannot create a container",
    "RunContainerError": "the container runtime cannot start a container",
    "ImagePullBackOff": "an image cannot be pulled, and the kubelet pauses before it tries again",
    "InvalidImageName": "an image's name is malformed",
    "ImageInspectError": "the container runtime cannot read an image",
    "ErrImageNeverPull": "an image is not on the node, and ``imagePullPolicy: Never`` forbids to pull it",
    "ErrImageEntrypoint": "a container has no command, and its image has none to run (a local node has no images)",
    # How it ended, or why replicas start again.
    "JobSucceeded": "the replicas that decide about its success have succeeded",
    "MinSuccess": "as many replicas have succeeded as its ``minSuccess`` asks for",
    "PodFailed": "a replica failed",
    "PodEvicted": "a pod was taken away",
    "PodPending": "a pod did not start in the time that a policy of the job gives it",
    "NodeLost": "a node was lost",
    "TaskCompleted": "a task was completed, which a policy answers",
    "TaskFailed": "a task has spent its ``maxRetry``",
    "Unknown": "a part of the gang runs that is less than its minimum, and no node is found for another",
    "BackoffLimitExceeded": "no restart is left",
    "DeadlineExceeded": "it was active for longer than ``activeDeadlineSeconds``",
    "MaxDisruptionsExceeded": "its pods were taken away more often than it bears",
    "StartTimeout": "it had its place and did not run within its ``tf-dist.dev/startup-timeout``",
    "InvalidTFJobSpec": "an earlier release ended it, as its spec could not be read",
}

EVENTS: Final[Mapping[str, str]] = {
    "TFJobSuspended": "a TFJob ``v1`` is suspended (in the training operator's words)",
    "TFJobResumed": "it is resumed",
    "TFJobRestarting": "replicas of it failed and start again",
    "TFJobSucceeded": "it has succeeded",
    "TFJobFailed": "it has failed",
    "ExitedWithCode": "a pod has ended, with this exit code",
    "ContainerRestarted": "the kubelet has restarted a container in its pod, which changes no state of the job",
    "SuccessfulCreatePod": "a pod was created",
    "SuccessfulDeletePod": "a pod was deleted",
    "SuccessfulCreateService": "a service was created",
    "SuccessfulDeleteService": "a service was deleted",
    "FailedCreatePod": "a pod could not be created; the message is the server's",
    "FailedDeletePod": "a pod could not be deleted",
    "FailedCreateService": "a service could not be created",
    "FailedDeleteService": "a service could not be deleted",
    "SetPodTemplateRestartPolicy": "a pod template has a restart policy, which that of the replica overrides",
    "SetPodTemplateSchedulerName": "a pod template names another scheduler than the gang scheduler, and keeps it",
    "SpecAccepted": "a spec that could not be read is mended and in force",
    "UnknownFields": "the spec has fields that nothing reads",
    "NodesReassigned": "nodes that were assigned to the job take no pods any more; its new pods go to others",
    "AnnotationsNotUsed": "a Volcano Job has annotations that are not used here",
    "SchedulerNameNotUsed": "a Volcano Job names Volcano's scheduler; the default one places its pods",
    "NewerStatusFormat": "a newer release wrote the job's status; this one leaves the job as it is",
}
