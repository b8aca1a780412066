"""Ownership of jobs: which driver a job names, and which driver may reconcile or claim it.

A driver is named by a text: ``namespace/lease`` for one that keeps a Lease alive, any word without a slash for one that
cannot die without its whole cluster (``embedded``). Which Leases are stale is observed by the caller.
"""

from __future__ import annotations

from collections.abc import Collection

from tf_dist.core.api import names
from tf_dist.core.api.fieldpath import mapping, text
from tf_dist.core.api.job import Document
from tf_dist.core.api.names import TRAINING_OPERATOR
from tf_dist.core.api.status_codec import FIELD, stored_status


def managed_elsewhere(stored: Document) -> bool:
    """Whether a job names another controller in ``spec.runPolicy.managedBy``, as any value but ours does.

    Never raises: it is asked before the rest of a document is read, which may be anything.
    """
    manager = mapping(mapping(stored.get("spec")).get("runPolicy")).get("managedBy")
    return manager is not None and manager != TRAINING_OPERATOR


def driver_of(stored: Document) -> str:
    """The driver that a stored job names: the one in its status, before the first status its annotation, "" for none.

    Never raises: a value that is no name counts as none.
    """
    annotations = mapping(mapping(stored.get("metadata")).get("annotations"))
    memory = mapping(stored_status(stored).get(FIELD))
    return text(memory.get("driver")) or text(annotations.get(names.DRIVER))


def may_drive(driver: str, me: str, stale: Collection[str], *, takes_over: bool) -> bool:
    """Whether ``me`` may drive a job that names ``driver``.

    Its own always; a job without a driver, or whose driver is among ``stale``, if ``me`` ``takes_over`` jobs. A driver
    without a Lease is never stale.
    """
    if not driver:
        return takes_over
    if driver == me:
        return True
    return takes_over and "/" in driver and driver in stale


def may_claim(driver: str, me: str, stale: Collection[str], *, reserved: str) -> bool:
    """Whether ``me``, which takes over no job by itself, may claim one that it was asked to reconcile.

    A job without a driver, one that is ``reserved`` for the driver that is asked, or one whose driver is among
    ``stale``.
    """
    return driver != me and (driver in ("", reserved) or ("/" in driver and driver in stale))
