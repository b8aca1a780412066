"""The errors for refusals of the server, and their hints."""

from __future__ import annotations

import pytest

from tf_dist.cluster.api import NODES, PODS, SERVICES, TFJOBS
from tf_dist.cluster.api_errors import NotServed, QuotaExceeded, RequestInfo, Unauthorized, error_from_status
from tf_dist.errors import Forbidden, NotFound


def denied(asked: RequestInfo, message: str) -> Forbidden:
    found = error_from_status(403, {"kind": "Status", "reason": "Forbidden", "message": message}, asked=asked)
    assert isinstance(found, Forbidden)
    return found


def cannot(user: str) -> str:
    return f'pods is forbidden: User "{user}" cannot create resource "pods" in API group "" in the namespace "research"'


@pytest.mark.parametrize(
    ("asked", "user", "commands"),
    [
        (
            RequestInfo("create", PODS, "", "research"),
            "jane",
            "kubectl create role tf-dist-create-pods --verb=create --resource=pods -n research"
            " && kubectl create rolebinding tf-dist-create-pods --role=tf-dist-create-pods --user=jane -n research",
        ),
        (
            RequestInfo("patch", TFJOBS, "status", "research"),
            "system:serviceaccount:research:trainer",
            "kubectl create role tf-dist-patch-tfjobs-status --verb=patch --resource=tfjobs.kubeflow.org/status"
            " -n research && kubectl create rolebinding tf-dist-patch-tfjobs-status --role=tf-dist-patch-tfjobs-status"
            " --serviceaccount=research:trainer -n research",
        ),
        (
            RequestInfo("list", NODES),
            "jane",
            "kubectl create clusterrole tf-dist-list-nodes --verb=list --resource=nodes && kubectl create"
            " clusterrolebinding tf-dist-list-nodes --clusterrole=tf-dist-list-nodes --user=jane",
        ),
        (
            RequestInfo("watch", PODS),
            "jane",
            "kubectl create clusterrole tf-dist-watch-pods --verb=watch --resource=pods && kubectl create"
            " clusterrolebinding tf-dist-watch-pods --clusterrole=tf-dist-watch-pods --user=jane",
        ),
    ],
)
def test_missing_permission_has_command_that_grants_it(asked: RequestInfo, user: str, commands: str) -> None:
    found = denied(asked, cannot(user))
    assert str(found).startswith(f"{asked}: ")
    assert f'"{user}"' in str(found)
    assert found.hint.startswith(f"grant it: {commands} (")


def test_request_shows_verb_kind_and_namespace() -> None:
    assert str(RequestInfo("create", TFJOBS, "status", "research")) == (
        "create tfjobs.kubeflow.org/status in namespace research"
    )
    assert str(RequestInfo("list", NODES, "", "research")) == "list nodes"


def test_hint_has_no_grant_for_policies_and_anonymous_users() -> None:
    rule = 'pods "a" is forbidden: violates PodSecurity "restricted:latest": privileged'
    assert "grant" not in denied(RequestInfo("create", PODS, "", "research"), rule).hint
    assert "log in" in denied(RequestInfo("create", PODS, "", "research"), cannot("system:anonymous")).hint


def test_exceeded_quota_is_not_a_missing_permission() -> None:
    message = 'pods "a" is forbidden: exceeded quota: small, requested: pods=1, used: pods=4, limited: pods=4'
    found = denied(RequestInfo("create", PODS, "", "research"), message)
    assert isinstance(found, QuotaExceeded)
    assert "exceeded quota" in str(found)
    assert "grant" not in found.hint
    assert "-n research" in found.hint


@pytest.mark.parametrize("message", ["404 page not found", "the server could not find the requested resource"])
def test_missing_kind_differs_from_missing_object(message: str) -> None:
    asked = RequestInfo("create", TFJOBS, "", "research")
    found = error_from_status(404, {"message": message}, asked=asked)
    assert isinstance(found, NotServed)
    assert "tfjobs of kubeflow.org/v1" in str(found)
    gone = error_from_status(
        404, {"message": 'services "a" not found'}, asked=RequestInfo("get", SERVICES, "", "research")
    )
    assert type(gone) is NotFound


def test_node_that_denies_logs_is_not_an_authentication_error() -> None:
    message = "the server has asked for the client to provide credentials ( pods/log a)"
    found = error_from_status(401, {"message": message}, asked=RequestInfo("get", PODS, "log", "research"))
    assert type(found) is Forbidden
    assert "kubelet-client-certificate" in found.hint
    ours = error_from_status(401, {"message": "Unauthorized"}, asked=RequestInfo("get", PODS, "log", "research"))
    assert isinstance(ours, Unauthorized)
