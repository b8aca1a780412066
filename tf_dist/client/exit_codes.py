"""Exit codes of commands, on which scripts and pipelines rely."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tf_dist import errors

if TYPE_CHECKING:
    from tf_dist.core.model.reasons import OutcomeKind
    from tf_dist.core.pipeline.session import SessionEnd

SUCCEEDED: Final = 0
"""The command succeeded, and so did the job that it waited for."""
FAILED: Final = 1
"""The job failed or exceeded a time limit, or an error without its own exit code occurred."""
USAGE: Final = 2
"""The command line or the job is invalid, or the cluster refuses the request. A retry does not help."""
RETRYABLE: Final = 75
"""A retry may succeed (EX_TEMPFAIL): evicted, preempted, admission timeout, cluster unavailable."""
BROKEN_PIPE: Final = 141
"""The reader of the output closed it (``| head``)."""
SIGNAL_BASE: Final = 128
"""Signal n ended the command: 130 after Ctrl-C, 143 after SIGTERM."""

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


def exit_code_of_outcome(kind: OutcomeKind | None) -> int:
    """The exit code of an outcome. None: the job has not ended, so a command that waited for it failed."""
    from tf_dist.core.model.reasons import OutcomeKind  # imported late: these types double the startup time of --help

    match kind:
        case OutcomeKind.SUCCEEDED:
            return SUCCEEDED
        case OutcomeKind.EVICTED | OutcomeKind.PREEMPTED | OutcomeKind.ADMISSION_TIMEOUT:
            return RETRYABLE
        case OutcomeKind.INVALID:
            return USAGE
    return FAILED


def exit_code_of_end(end: SessionEnd) -> int:
    """The exit code of a session."""
    return SIGNAL_BASE + end.signal if end.signal else exit_code_of_outcome(end.result.kind)


def exit_code_of_error(error: errors.TFDistError) -> int:
    """The exit code of an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
