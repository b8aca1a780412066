"""Gang schedulers that bind pods: a gang has its place when its pods have their nodes, whatever an object says of it.

The truth is on the pods: the object's status may be of the attempt before, or a second late.
"""

from __future__ import annotations

from collections import Counter

from tf_dist.core.gang.model import Admit, Resize, Wait
from tf_dist.core.resizing import change_text
from tf_dist.core.schedulers.gangs import least
from tf_dist.core.situation import Situation
from tf_dist.core.sizes import sizes_of
from tf_dist.core.text import listed


def placed(s: Situation) -> Admit | None:
    """The place of a gang of which enough pods have nodes; None while it has none."""
    have = Counter(replica.type for replica, pod in s.facts.current.items() if pod.has_node)
    have.update(replica.type for replica in s.facts.succeeded if replica not in s.facts.current)
    needed = least(s.job)
    enough = bool(needed) and all(have[type_] >= count for type_, count in needed.items())
    return Admit(sizes=sizes_of(s.asked)) if enough else None


def resized(s: Situation) -> Resize | None:
    """The size of a gang that has its place follows its document: the scheduler finds nodes for whoever comes."""
    before, after = sizes_of(s.job), sizes_of(s.asked)
    if before == after:
        return None
    message = f"{change_text(s.asked, before, after)}, as the job asks for now"
    return Resize(sizes=after, placement={}, message=message)


def waiting(s: Situation, queue: str, said: str) -> Wait:
    """Why a gang waits whose object is there. ``queue``: whose line it stands in; ``said``: the scheduler's words."""
    pods = s.facts.current
    lacking = sorted(replica for replica, pod in pods.items() if not pod.has_node)
    words = said or next((pods[replica].unschedulable for replica in lacking if pods[replica].unschedulable), "")
    if not pods:
        text = words or "its pods are being created"
    elif not lacking:
        text = words or f"{len(pods)} pods of the gang have their nodes, and the others are still to be created"
    else:
        text = f"{listed(lacking)} of {len(s.job.replicas)} pods {'has' if len(lacking) == 1 else 'have'} no node"
        text += f": {words}" if words else " yet"
    return Wait(reason="WaitingForCapacity", message=f"waits in {queue}: {text}")
