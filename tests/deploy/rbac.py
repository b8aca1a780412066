"""The RBAC authorizer of Kubernetes as a function of manifests: which calls the roles of a subject allow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

Object = dict[str, Any]


class Call(NamedTuple):
    """A request. ``resource`` includes the subresource. ``name`` is "" for lists, creations and collections."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Call:
        """``update tfjobs/status.kubeflow.org team/mnist``, ``list pods team/``, or ``list pods`` in all namespaces."""
        verb, kind, *place = text.split()
        plural, slash, sub = kind.partition("/")
        resource, _, group = plural.partition(".")
        if slash and "." in sub:
            sub, _, group = sub.partition(".")
        namespace, inside, name = (place or [""])[0].rpartition("/")
        return cls(verb, resource + (f"/{sub}" if slash else ""), group, namespace if inside else "", name)


class Subject(NamedTuple):
    """The client: a service account with its namespace, or a user."""

    name: str
    namespace: str = ""

    @property
    def user(self) -> str:
        """The user name in the API server."""
        return f"system:serviceaccount:{self.namespace}:{self.name}" if self.namespace else self.name

    @property
    def groups(self) -> tuple[str, ...]:
        accounts = ("system:serviceaccounts", f"system:serviceaccounts:{self.namespace}") if self.namespace else ()
        return (*accounts, "system:authenticated")


def allowed(objects: Iterable[Object], subject: Subject, call: Call) -> bool:
    """Whether a rule of the subject's roles matches the call."""
    return any(_matches(rule, call) for rule in _rules(list(objects), subject, call.namespace))


def _rules(objects: list[Object], subject: Subject, namespace: str) -> Iterator[Object]:
    roles = {(one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one for one in objects}
    for one in objects:
        if one["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        space = one["metadata"].get("namespace", "")
        reaches = one["kind"] == "ClusterRoleBinding" or (space and space == namespace)
        if not reaches or not any(_is(subject, bound) for bound in one["subjects"]):
            continue
        kind = one["roleRef"]["kind"]
        yield from roles[kind, space if kind == "Role" else "", one["roleRef"]["name"]]["rules"]


def _is(subject: Subject, bound: Object) -> bool:
    match bound["kind"]:
        case "ServiceAccount":
            return (bound["name"], bound["namespace"]) == (subject.name, subject.namespace)
        case "Group":
            return bound["name"] in subject.groups
        case _:
            return bool(bound["name"] == subject.user)


def _matches(rule: Object, call: Call) -> bool:
    def has(key: str, wanted: str) -> bool:
        return bool({wanted, "*"} & set(rule.get(key) or ()))

    named = rule.get("resourceNames")
    return (
        has("verbs", call.verb)
        and has("apiGroups", call.group)
        and has("resources", call.resource)
        and (not named or call.name in named)
    )
