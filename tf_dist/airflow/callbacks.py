"""Callbacks of the operator: a class of static methods, as the Kubernetes provider has for pods."""

from __future__ import annotations

from typing import Any


class TFJobCallbacks:
    """Override the methods that you need. All are static and take keyword arguments.

    Accept ``**kwargs``, because later versions may pass more. The methods run in the worker. An error in a method fails
    the task.
    """

    @staticmethod
    def on_job_document_created(*, document: dict[str, Any], **kwargs: Any) -> None:
        """The document is complete and not yet submitted. The method may change everything in it except the name."""

    @staticmethod
    def on_job_creation(*, job: Any, **kwargs: Any) -> None:
        """A job was created, or the job of an earlier try was adopted. ``job`` is a ``StoredJob``."""

    @staticmethod
    def on_job_completion(*, result: dict[str, Any], succeeded: bool, **kwargs: Any) -> None:
        """The wait has ended. ``result`` becomes the XCom if the job succeeded."""

    @staticmethod
    def on_job_cleanup(*, name: str, namespace: str, **kwargs: Any) -> None:
        """The job was deleted, for example by ``on_finish_action``."""
