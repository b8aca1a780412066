"""Names that Kubernetes will take: for the job, and for the pods and services made from it.

A job whose name is too long is accepted by the API server, and then none of its pods can be made: better said before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tf_dist.core.dialects.problems import MISSING, Findings, Loc
from tf_dist.core.dialects.shape import Metadata

LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
"""A DNS-1123 label: names of namespaces, containers, volumes, Volcano tasks."""

SERVICE: Final = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")
"""A DNS-1035 label: names of services, and so of everything that gets one."""

MAX: Final = 63


def is_label(name: str) -> bool:
    """Whether a text is a DNS-1123 label."""
    return len(name) <= MAX and LABEL.fullmatch(name) is not None


def mended(name: str) -> str:
    """The nearest name that Kubernetes takes, "" if nothing is left of it."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:MAX].rstrip("-")


def check_label(name: str, loc: Loc, out: Findings, *, letter_first: bool = False) -> bool:
    """Note an error if the name is no label; ``letter_first``: DNS-1035, as for services."""
    if len(name) > MAX:
        out.error(loc, f"is {len(name)} characters long; a name may have {MAX}")
        return False
    if (SERVICE if letter_first else LABEL).fullmatch(name):
        return True
    rule = "start with a letter" if letter_first else "start with a letter or digit"
    better = mended(name)
    if letter_first:
        better = better.lstrip("-0123456789")
    out.error(
        loc,
        f"{name!r} is not a name Kubernetes takes: lower-case letters, digits and '-' only, and it must {rule}",
        f'write "{better}"' if better else "",
    )
    return False


def check_metadata(metadata: Metadata, out: Findings, *, letter_first: bool) -> bool:
    """The job's own name and namespace; whether the name is good, so that names made from it can be judged."""
    if metadata.namespace is not None:
        check_label(metadata.namespace, ("metadata", "namespace"), out)
    if metadata.name:
        return check_label(metadata.name, ("metadata", "name"), out, letter_first=letter_first)
    if metadata.generate_name:
        return check_label(metadata.job_name, ("metadata", "generateName"), out, letter_first=letter_first)
    out.error(("metadata", "name"), MISSING, "give the job a name")
    return False


def check_pod_names(metadata: Metadata, groups: Iterable[tuple[str, int]], out: Findings) -> None:
    """``{job}-{type}-{index}`` names a pod and its service, and a service name has at most 63 characters."""
    endings = [f"-{type_}-{replicas - 1}" for type_, replicas in groups if replicas > 0]
    longest = max(endings, key=len, default="")
    name = metadata.job_name
    if len(name) + len(longest) <= MAX:
        return
    room = MAX - len(longest) - (0 if metadata.name else 5)
    field = "name" if metadata.name else "generateName"
    out.error(
        ("metadata", field),
        f"the replica {name + longest!r} would have a name of {len(name) + len(longest)} characters; {MAX} are allowed",
        f"with these replicas the {field} may have {room} characters"
        if room > 0
        else "shorten the replica type's name",
    )
