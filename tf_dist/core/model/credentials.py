"""Credentials in text from containers, kubelets and webhooks. tf-dist hides them where it reads such text."""

from __future__ import annotations

import re
from typing import Final

_HIDDEN: Final = "***"
# Secrets are detected by their form, or by the name before them.
_SECRETS: Final = (
    (re.compile(r"-----BEGIN [A-Z ]{1,40}-----.*?(-----END [A-Z ]{1,40}-----|\Z)", re.DOTALL), _HIDDEN),
    # A kubelet keeps only the end of a log, which may begin within a key.
    (re.compile(r"\A[\w+/=\s-]*-----END [A-Z ]{1,40}-----"), _HIDDEN),
    (re.compile(r"(://)[^/\s@]{1,200}@"), rf"\1{_HIDDEN}@"),
    (re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1 {_HIDDEN}"),
    (re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]+\.[\w-]+"), _HIDDEN),
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


def hide_credentials(text: str) -> str:
    """The text without credentials, which are detected by their form or by the name before them."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text
