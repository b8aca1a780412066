"""What users hang in between: a class with these methods, as the Kubernetes provider has it for pods."""

from __future__ import annotations

from typing import Any


class TFJobCallbacks:
    """Overwrite what you need; every method is static, takes keywords, and must take ones that come later (``kwargs``).

    They run in the worker. What one raises fails the task.
    """

    @staticmethod
    def on_job_document_created(*, document: dict[str, Any], **kwargs: Any) -> None:
        """The document is complete and not submitted yet; it may be changed in place, all but its name."""

    @staticmethod
    def on_job_creation(*, job: Any, **kwargs: Any) -> None:
        """A job was created, or an earlier try's adopted (``job``: a ``StoredJob``)."""

    @staticmethod
    def on_job_completion(*, result: dict[str, Any], succeeded: bool, **kwargs: Any) -> None:
        """The wait is over; ``result`` is what becomes the XCom when the job succeeded."""

    @staticmethod
    def on_job_cleanup(*, name: str, namespace: str, **kwargs: Any) -> None:
        """The job was deleted, as ``on_finish_action`` says."""
