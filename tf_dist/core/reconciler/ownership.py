"""Ownership: which driver a job names, and who may drive or claim it.

A driver is named by a text: ``namespace/lease`` for one that keeps a Lease alive, any word without a slash for one that
cannot die without its whole cluster (``embedded``). Whether a Lease is stale is observed outside; this is what follows.
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

    Never raises: whatever people wrote there that is no name counts as none.
    """
    annotations = mapping(mapping(stored.get("metadata")).get("annotations"))
    memory = mapping(stored_status(stored).get(FIELD))
    return text(memory.get("driver")) or text(annotations.get(names.DRIVER))


def may_drive(driver: str, me: str, stale: Collection[str], *, takes_over: bool) -> bool:
    """Whether ``me`` may drive a job that names ``driver``.

    Its own it may always; one that nobody drives, or whose driver is among ``stale``, if it ``takes_over`` jobs. A
    driver without a Lease is never stale.
    """
    if not driver:
        return takes_over
    if driver == me:
        return True
    return takes_over and "/" in driver and driver in stale


def may_claim(driver: str, me: str, stale: Collection[str], *, reserved: str) -> bool:
    """Whether ``me``, who takes nothing over by itself, may take a job that it was asked to drive.

    One that nobody drives, one that is ``reserved`` for whoever is asked, or one whose driver is among ``stale``.
    """
    return driver != me and (driver in ("", reserved) or ("/" in driver and driver in stale))
