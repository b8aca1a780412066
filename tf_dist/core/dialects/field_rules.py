"""Rules of single values that an API server checks: numbers, names, ports, paths and labels.

A rule is called with a value of the right type. An empty text is valid, because it means that the field is not set,
except where ``not_empty`` or ``choice(…, empty=False)`` is used.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tf_dist.core.dialects.common_schema import check_label
from tf_dist.core.dialects.field_errors import FieldErrors, check_quantity, describe_value, unknown_value
from tf_dist.core.model.fieldpath import FieldPath, suggestion
from tf_dist.core.model.names import DNS_LABEL, is_label_key, is_label_value

FieldRule = Callable[[Any, FieldPath, FieldErrors], None]
"""Checks a field that is present and has the right type."""


_PORT_NAME: Final = re.compile(r"(?=.*[a-z])(?=.{1,15}$)[a-z0-9](?:-?[a-z0-9])*")
_SUBDOMAIN: Final = re.compile(rf"{DNS_LABEL.pattern}(?:\.{DNS_LABEL.pattern})*")
_KEY: Final = re.compile(r"(?!\.{1,2}$)(?!\.\.)[-._a-zA-Z0-9]{1,253}")
_VARIABLE: Final = re.compile(r"[ -<>-~]+")  # printable ASCII except "="
_HEADER: Final = re.compile(r"[-A-Za-z0-9]+")
KEY_HINT: Final = "a key is at most 63 letters, digits, '-', '_' and '.'; a domain and '/' may stand before it"
VALUE_HINT: Final = "at most 63 letters, digits, '-', '_' and '.', a letter or digit first and last"


def matches(valid: Callable[[str], object], what: str, hint: str) -> FieldRule:
    """A text for which ``valid`` is true. ``what`` it must be, and a hint."""

    def check(value: str, loc: FieldPath, out: FieldErrors) -> None:
        if value and not valid(value):
            shown = value if len(value) <= 80 else f"{value[:77]}..."
            out.error(loc, f"{shown!r} is not {what}", hint)

    return check


label_key: Final = matches(is_label_key, "the key of a label", KEY_HINT)
label_value: Final = matches(is_label_value, "the value of a label", VALUE_HINT)
config_key: Final = matches(_KEY.fullmatch, "a key of a ConfigMap or Secret", "letters, digits, '-', '_' and '.' only")
header_name: Final = matches(_HEADER.fullmatch, "the name of a header", "letters, digits and '-' only")


def choice(*known: str, empty: bool = True) -> FieldRule:
    """One of the known values, or, if ``empty``, the empty text, which means that the field is not set."""

    def check(value: str, loc: FieldPath, out: FieldErrors) -> None:
        if value not in known and (value or not empty):
            out.error(loc, unknown_value(value), suggestion(value, [one for one in known if one]))

    return check


def between(least: int, most: int) -> FieldRule:
    """A number within bounds."""

    def check(value: int, loc: FieldPath, out: FieldErrors) -> None:
        if not least <= value <= most:
            out.error(loc, f"must be from {least} to {most}, not {value}", f"write a number from {least} to {most}")

    return check


def file_mode(value: int, loc: FieldPath, out: FieldErrors) -> None:
    """The permissions of a file."""
    if not 0 <= value <= 0o777:
        out.error(loc, f"{value} is not a file mode", "write an octal number from 0000 to 0777, or its decimal value")


def not_negative(value: int, loc: FieldPath, out: FieldErrors) -> None:
    """A number of 0 or more."""
    if value < 0:
        out.error(loc, f"must not be negative, not {value}", "write 0 or more")


def amount(value: object, loc: FieldPath, out: FieldErrors) -> None:
    """A quantity."""
    check_quantity(value, loc, out)


def dns_label(value: str, loc: FieldPath, out: FieldErrors) -> None:
    """A label of a DNS name, such as the name of a container."""
    if value:
        check_label(value, loc, out)


def image_name(value: str, loc: FieldPath, out: FieldErrors) -> None:
    """The name of an image. Blanks in it are doubtful: an API server accepts them."""
    if value != value.strip():
        out.error(loc, "an image name has no blanks in it", "remove the blanks before and after it")
    elif any(sign.isspace() for sign in value):
        out.doubtful(loc, "an image name has no blanks in it")


def subdomain(value: str, loc: FieldPath, out: FieldErrors) -> None:
    """The name of an object."""
    if value and (len(value) > 253 or not _SUBDOMAIN.fullmatch(value)):
        better = re.sub(r"[^a-z0-9.]+", "-", value.lower()).strip("-.")[:253]
        out.error(
            loc,
            f"{value!r} is not a valid Kubernetes name: lower-case letters, digits, '-' and '.' only",
            f'write "{better}"' if _SUBDOMAIN.fullmatch(better) else "use the name of the object in the cluster",
        )


def labels(found: Mapping[Any, Any], loc: FieldPath, out: FieldErrors) -> None:
    """Keys and values of labels, or of a node selector."""
    for key, value in found.items():
        if isinstance(key, str) and not is_label_key(key):
            out.error((*loc, key), f"{key!r} is not the key of a label", KEY_HINT)
        if isinstance(value, str):
            label_value(value, (*loc, str(key)), out)


def annotation_keys(found: Mapping[Any, Any], loc: FieldPath, out: FieldErrors) -> None:
    """Keys of annotations, and the size of all together."""
    size = 0
    for key, value in found.items():
        size += len(str(key)) + len(str(value))
        if isinstance(key, str) and not is_label_key(key.lower()):
            out.error((*loc, key), f"{key!r} is not the key of an annotation", KEY_HINT)
    if size > 256 * 1024:
        out.error(loc, f"are {size} bytes together; 262144 are allowed", "put large values into a ConfigMap")


def port_number(value: int, loc: FieldPath, out: FieldErrors) -> None:
    """A port from 1 to 65535."""
    if not 1 <= value <= 65535:
        message = f"is not a port: {describe_value(value)}; ports go from 1 to 65535"
        out.error(loc, message, "write a number from 1 to 65535")


def host_port(value: int, loc: FieldPath, out: FieldErrors) -> None:
    """A port, or 0 for none."""
    if value:  # 0 means no port
        port_number(value, loc, out)


def port_name(value: str, loc: FieldPath, out: FieldErrors) -> None:
    """The name of a port."""
    if value and not _PORT_NAME.fullmatch(value):
        rule = "at most 15 lower-case letters, digits and single '-', one letter at least"
        out.error(loc, f"{value!r} is not a port name: {rule}", "choose a shorter name" if len(value) > 15 else "")


def port(value: int | str, loc: FieldPath, out: FieldErrors) -> None:
    """The number or the name of a port."""
    if isinstance(value, int):
        port_number(value, loc, out)
    elif not _PORT_NAME.fullmatch(value):
        hint = f"write {value} without quotes" if value.isdecimal() else "write a number, or a name from ports"
        out.error(loc, f"{value!r} is not the name of a port", hint)


def address(value: str, loc: FieldPath, out: FieldErrors) -> None:
    """An IP address."""
    try:
        ipaddress.ip_address(value)
    except ValueError:
        out.error(loc, f"{value!r} is not an IP address", "write an address such as 10.0.0.10")


def not_empty(rule: FieldRule) -> FieldRule:
    """A text for which the empty text is not the same as no text."""

    def check(value: str, loc: FieldPath, out: FieldErrors) -> None:
        if value:
            rule(value, loc, out)
        else:
            out.error(loc, "must not be empty", "add a value, or remove the field")

    return check


def absolute_path(value: str, loc: FieldPath, out: FieldErrors) -> None:
    """A path that should begin with /; an API server accepts others."""
    if value and not value.startswith("/"):
        out.warn(loc, f"{value!r} is relative: the kubelet mounts the volume at /{value}", f"write /{value}")


def path_without_dots(value: str, loc: FieldPath, out: FieldErrors) -> None:
    """A path without ``..``."""
    if ".." in value.split("/"):
        out.error(loc, f"{value!r} must not contain '..'", "write the path without '..'")


def inner_path(value: str, loc: FieldPath, out: FieldErrors) -> None:
    """A path within a volume."""
    if value.startswith("/"):
        out.error(loc, f"{value!r} must be a relative path", f"write {value.lstrip('/') or 'a path inside the volume'}")
    path_without_dots(value, loc, out)


def file_path(value: str, loc: FieldPath, out: FieldErrors) -> None:
    """The path of a file within a volume."""
    inner_path(value, loc, out)
    if value.startswith("..") and not value.startswith("../") and value != "..":
        out.error(loc, f"{value!r} must not start with '..'", "begin the name with another character")


def variable_name(value: str, loc: FieldPath, out: FieldErrors) -> None:
    """The name of an environment variable."""
    if "=" in value:
        out.error(loc, f"{value!r}: the name of a variable has no '='", "use name: and value:")
    elif value and not _VARIABLE.fullmatch(value):
        out.error(loc, f"{value!r} is not the name of a variable", "letters, digits and '_' only")


def each(rule: FieldRule, kind: type = str) -> FieldRule:
    """A list in which each item of this type follows the rule."""

    def check(values: Iterable[Any], loc: FieldPath, out: FieldErrors) -> None:
        for index, value in enumerate(values):
            if isinstance(value, kind):
                rule(value, (*loc, index), out)

    return check


def csi_driver(value: str, loc: FieldPath, out: FieldErrors) -> None:
    """The name of a CSI driver."""
    subdomain(value.lower(), loc, out)
    if len(value) > 63:
        out.error(loc, f"has {len(value)} characters; 63 are allowed", "use the name that the driver registers")
