"""Exit codes: a contract with scripts and pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tf_dist import errors
from tf_dist.core.api.status import OutcomeKind

SUCCEEDED: Final = 0
FAILED: Final = 1
USAGE: Final = 2
RETRYABLE: Final = 75  # EX_TEMPFAIL: the same command may work later
BROKEN_PIPE: Final = 141
SIGNAL_BASE: Final = 128

_CODES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (errors.InvalidJob, USAGE),
    (errors.JobEvicted, RETRYABLE),
    (errors.AdmissionTimeout, RETRYABLE),
    (errors.JobFailed, FAILED),
    (errors.JobTimeout, FAILED),
    (errors.Unavailable, RETRYABLE),
    (errors.Throttled, RETRYABLE),
    (errors.Conflict, RETRYABLE),
    (errors.Gone, RETRYABLE),
    (errors.ClusterError, USAGE),
)


_CODE_OF_KIND: Final[Mapping[OutcomeKind, int]] = {
    OutcomeKind.SUCCEEDED: SUCCEEDED,
    OutcomeKind.EVICTED: RETRYABLE,
    OutcomeKind.PREEMPTED: RETRYABLE,
    OutcomeKind.ADMISSION_TIMEOUT: RETRYABLE,
}


def exit_code_of_outcome(kind: OutcomeKind | None) -> int:
    """The exit code of an outcome; None: the job goes on, which is no success for a command that waited for its end."""
    return FAILED if kind is None else _CODE_OF_KIND.get(kind, FAILED)


def exit_code_of_error(error: errors.TFDistError) -> int:
    """The exit code of a kind of error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
