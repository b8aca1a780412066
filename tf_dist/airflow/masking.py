"""Secrets that Airflow masks: removed from published values, and masked in the triggerer's logs.

Airflow stores the arguments of a trigger in its database. The secrets of a document are therefore sealed with a key
that is an annotation of the job. Reading the secrets requires access to both.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import quote, unquote

from airflow.providers.common.compat.sdk import redact
from cryptography.fernet import Fernet, InvalidToken

from tf_dist.airflow.version_compat import AirflowException
from tf_dist.errors import TFDistError

_STARS: Final = re.compile(r"(?:\*\*\*)+")
_LOG: Final = logging.getLogger(__name__)


def masked(value: Any) -> Any:
    """A copy of plain data without the secrets that this process knows."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {masked(key): masked(one) for key, one in value.items()}
    for kind in (list, tuple, set):
        if isinstance(value, kind):
            return kind(map(masked, value))
    return value


@contextmanager
def masked_errors() -> Iterator[None]:
    """Mask the errors that leave a task, and add their hints, because Airflow shows only the message of an error.

    Airflow masks its logs, but passes errors to callbacks and notifiers.
    """
    try:
        yield
    except (TFDistError, AirflowException) as error:
        hint = error.hint if isinstance(error, TFDistError) else ""
        if hint and hint not in str(error):
            error.args = (f"{error} ({hint})",)
        error.args = masked(error.args)
        raise


def secrets_in(documents: Iterable[Any]) -> list[str]:
    """The secrets in the documents that this process masks."""
    found = {secret for text in _texts(list(documents)) for secret in _secrets_of_text(text)}
    related = {other for secret in found for other in (quote(secret), unquote(secret))}
    for secret in found:
        with suppress(ValueError):
            related |= {*_texts(json.loads(secret))}
    return sorted(found | {one for one in related if _is_secret(one)})


def new_key() -> str:
    """A key for ``sealed``."""
    return Fernet.generate_key().decode()


def sealed(secrets: Iterable[str], key: str) -> str:
    """The secrets as a text that is unreadable without the key."""
    return Fernet(key).encrypt(json.dumps([*secrets]).encode()).decode()


def unsealed(text: str, key: str) -> list[str]:
    """The secrets of a sealed text; none, with a warning, if the key is wrong."""
    try:
        return [str(one) for one in json.loads(Fernet(key).decrypt(text))]
    except (InvalidToken, ValueError):
        _LOG.warning("failed to learn the secrets of the task: the annotation of its job is missing or was changed")
        return []


async def learn(secrets: Iterable[str]) -> None:
    """Mask the secrets in this process, and in the process that writes its logs."""
    try:
        from airflow.sdk.log import amask_secret
    except ImportError:  # before 3.3
        from airflow.providers.common.compat.sdk import mask_secret

        for one in secrets:
            mask_secret(one)
        return
    for one in secrets:
        await amask_secret(one)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def _secrets_of_text(text: str) -> Iterator[str]:
    """The parts of a text that are masked. A part is a secret only if it is also masked on its own."""
    hidden = str(redact(text))
    if hidden == text:
        return
    around = "(.+?)".join(map(re.escape, _STARS.split(hidden)))
    if match := re.fullmatch(around, text, re.DOTALL):
        yield from filter(_is_secret, match.groups())


def _is_secret(text: str) -> bool:
    return bool(text) and bool(_STARS.fullmatch(str(redact(text)))) and not _STARS.fullmatch(text)
