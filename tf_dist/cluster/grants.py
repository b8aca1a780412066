"""How to mend a refusal: which right is missing, and the command that grants it."""

from __future__ import annotations

import re
from typing import Final

from tf_dist.cluster.asked import Asked

# What the API server's authorizer writes; other refusals of code 403 are those of admission, which no grant mends.
_AUTHORIZER: Final = re.compile(r'User "(?P<user>[^"]*)" cannot ')
_ACCOUNT: Final = "system:serviceaccount:"
_ANONYMOUS: Final = "system:anonymous"
_ALL: Final = "tf-dist install makes roles with all that tf-dist needs"


def is_of_a_rule(message: str) -> bool:
    """Whether it is not the right to ask that lacks: admission refuses the object."""
    return _AUTHORIZER.search(message) is None and "forbidden:" in message


def hint(asked: Asked, message: str) -> str:
    """What to do about a refusal with this message of the server."""
    who = _AUTHORIZER.search(message)
    user = who["user"] if who else ""
    if user == _ANONYMOUS:
        return "the request carried no credentials: log in, or name another user in the kubeconfig"
    if is_of_a_rule(message):
        return "a rule of the cluster refuses this object, whoever asks: change it, or ask whoever set the rule"
    return f"grant it: {_commands(asked, user)} ({_ALL})"


def _commands(asked: Asked, user: str) -> str:
    everywhere = not (asked.resource.namespaced and asked.namespace)
    kind, place = ("clusterrole", "") if everywhere else ("role", f" -n {asked.namespace}")
    name = re.sub(r"[^a-z0-9]+", "-", f"tf-dist-{asked.verb}-{asked.plural}")
    made = f"kubectl create {kind} {name} --verb={asked.verb} --resource={asked.granted}{place}"
    return f"{made} && kubectl create {kind}binding {name} --{kind}={name} {_subject(user)}{place}"


def _subject(user: str) -> str:
    if user.startswith(_ACCOUNT):
        return f"--serviceaccount={user.removeprefix(_ACCOUNT)}"
    return f"--user={user}" if user else "--user=YOU"
