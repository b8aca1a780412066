"""Why a pod cannot start, in the form in which its status says it."""

from __future__ import annotations

from tf_dist.errors import TFDistError


class PodProblem(TFDistError):
    """A pod or one of its containers cannot be started.

    ``reason`` is the container's waiting reason; ``permanent`` problems fail the pod, others are tried again;
    ``container`` is "" when the whole pod is concerned.
    """

    def __init__(
        self, reason: str, message: str, *, hint: str = "", permanent: bool = False, container: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        self.permanent = permanent
        self.container = container

    @property
    def text(self) -> str:
        """Message and hint in one line."""
        return f"{self} ({self.hint})" if self.hint else str(self)
