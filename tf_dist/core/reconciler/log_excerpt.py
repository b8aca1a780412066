"""Log excerpt: the end of what a container said last, short and without credentials, for the status of its job.

Those who may read a job may not always read the logs of its pods.
"""

from __future__ import annotations

import re
from typing import Final

MAX_LENGTH: Final = 1_000
MAX_LINES: Final = 20
_READ: Final = 8_192  # characters that are looked at: a kubelet keeps no more than 4096 bytes
_HIDDEN: Final = "***"
_CONTROLS: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
# What is a secret by its form, or by the name that stands before it.
_SECRETS: Final = (
    (re.compile(r"-----BEGIN [A-Z ]{1,40}-----.*?(-----END [A-Z ]{1,40}-----|\Z)", re.DOTALL), _HIDDEN),
    (re.compile(r"(://)[^/\s@]{1,200}@"), rf"\1{_HIDDEN}@"),
    (re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1 {_HIDDEN}"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]+"), _HIDDEN),
    (re.compile(r"\b(AKIA|ASIA)[0-9A-Z]{16}\b"), _HIDDEN),
    (
        re.compile(
            r"((?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential)"
            r"[\w-]{0,40}[\"']?\s{0,3}[=:]\s{0,3})(\"[^\"\n]*\"?|'[^'\n]*'?|[^\s,;&\"']+)",
            re.IGNORECASE,
        ),
        rf"\1{_HIDDEN}",
    ),
)


def log_excerpt(text: str) -> str:
    """The last lines of a text, at most ``MAX_LINES`` and ``MAX_LENGTH`` characters, with credentials hidden."""
    shown = _CONTROLS.sub("", text[-_READ:].replace("\r", "\n"))
    for pattern, instead in _SECRETS:
        shown = pattern.sub(instead, shown)
    lines = [line.rstrip() for line in shown.strip().splitlines() if line.strip()]
    kept = "\n".join(lines[-MAX_LINES:])
    return kept if len(kept) <= MAX_LENGTH else f"…{kept[1 - MAX_LENGTH :]}"
