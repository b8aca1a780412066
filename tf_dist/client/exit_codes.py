"""Exit codes: a contract with scripts and pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tf_dist import errors

if TYPE_CHECKING:
    from tf_dist.core.model.reasons import OutcomeKind
    from tf_dist.core.pipeline.session import SessionEnd

SUCCEEDED: Final = 0
"""Done; the job that was waited for succeeded."""
FAILED: Final = 1
"""The job failed, was not done in time, or an error without a code of its own."""
USAGE: Final = 2
"""A wrong command line, an invalid job, or a request that the cluster refuses: repeating it does not help."""
RETRYABLE: Final = 75
"""The same command may work later (EX_TEMPFAIL): evicted, preempted, no place in time, the cluster is away."""
BROKEN_PIPE: Final = 141
"""The reader of the output has closed it (``| head``)."""
SIGNAL_BASE: Final = 128
"""Plus the number of the signal that ended the command: 130 after Ctrl-C, 143 after SIGTERM."""

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
    """The exit code of an outcome; None: the job goes on. A command that waited for its end has not succeeded then."""
    from tf_dist.core.model.reasons import OutcomeKind  # not before: the core's types double the start of --help

    match kind:
        case OutcomeKind.SUCCEEDED:
            return SUCCEEDED
        case OutcomeKind.EVICTED | OutcomeKind.PREEMPTED | OutcomeKind.ADMISSION_TIMEOUT:
            return RETRYABLE
        case OutcomeKind.INVALID:
            return USAGE
    return FAILED


def exit_code_of_end(end: SessionEnd) -> int:
    """The exit code of a program whose session has ended."""
    return SIGNAL_BASE + end.signal if end.signal else exit_code_of_outcome(end.result.kind)


def exit_code_of_error(error: errors.TFDistError) -> int:
    """The exit code of a kind of error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
