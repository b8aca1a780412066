"""RBAC of Argo's steps: what they need with a controller, and what more where they drive their jobs themselves."""

from __future__ import annotations

from typing import Final

from tf_dist.cli.install.install_options import QUEUES, Manifest
from tf_dist.cli.install.rbac import ARGO_ACCOUNT, account, binding, companion_rules, inline_driver_rules, role, rule

EVENTS_ACCOUNT: Final = f"{ARGO_ACCOUNT}-events"
DRIVING: Final = f"{ARGO_ACCOUNT}-driver"
_GROUP: Final = "argoproj.io"
_EVENT_RULES: Final = (
    rule(_GROUP, "workflows", "create"),
    rule(_GROUP, "workfloweventbindings", "list"),
    rule(_GROUP, "workflowtemplates", "get"),
)


def step_rules(*, volcano: bool = False) -> list[Manifest]:
    """What a step needs where a controller drives its job, and Argo's executor beside it.

    No more than an administrator of the namespace has where tf-dist and Argo are installed, who may thus give it.
    ``workflows``: to distinguish a stopped workflow from a drained pod, and to see that one is suspended.
    """
    kinds = [("kubeflow.org", "tfjobs"), *([("batch.volcano.sh", "jobs")] if volcano else [])]
    return [
        *(rule(group, plural, "get", "list", "watch", "create", "patch", "delete") for group, plural in kinds),
        *companion_rules(),
        rule("", "pods", "get", "list", "watch"),
        rule("", "pods/log", "get"),
        rule("", "events", "list", "watch"),
        rule(_GROUP, "workflowtaskresults", "create", "patch"),
        rule(_GROUP, "workflows", "get"),
    ]


def step_roles(namespace: str, *, volcano: bool = False) -> list[Manifest]:
    """The account of steps with its role; and that of events: a Sensor, or who sends one to Argo's server, which then
    reads bindings and templates and creates workflows with the rights of the sender.
    """
    return [
        account(ARGO_ACCOUNT, namespace),
        role(ARGO_ACCOUNT, step_rules(volcano=volcano), namespace),
        binding(ARGO_ACCOUNT, ARGO_ACCOUNT, namespace, namespace),
        account(EVENTS_ACCOUNT, namespace),
        role(EVENTS_ACCOUNT, _EVENT_RULES, namespace),
        binding(EVENTS_ACCOUNT, EVENTS_ACCOUNT, namespace, namespace),
    ]


def driving_step_roles(namespace: str, *, volcano: bool = False) -> list[Manifest]:
    """What steps need besides to drive jobs themselves, and to see queues. For an administrator of the cluster to give:
    to write the status of a job is to say what it was admitted to.
    """
    return [
        role(DRIVING, inline_driver_rules(volcano=volcano), namespace),
        binding(DRIVING, ARGO_ACCOUNT, namespace, namespace),
        binding(f"{ARGO_ACCOUNT}-{namespace}", ARGO_ACCOUNT, namespace, of=QUEUES),
    ]
