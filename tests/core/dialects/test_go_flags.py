"""Go's flag package, case by case as in its documentation and source."""

from __future__ import annotations

import pytest

from tf_dist.core.dialects.volcano_plugins import (
    FlagKind,
    ParsedFlags,
    parse_go_bool,
    parse_go_flags,
    parse_go_int,
)

KINDS = {"port": FlagKind.INT, "ps": FlagKind.TEXT, "quiet": FlagKind.BOOL}


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ([], {}),
        (["--port=22"], {"port": "22"}),
        (["-port=22"], {"port": "22"}),
        (["--port", "22"], {"port": "22"}),
        (["--port=22", "--port=23"], {"port": "23"}),
        (["--ps="], {"ps": ""}),
        (["--ps=a=b"], {"ps": "a=b"}),
        (["--ps", "--quiet"], {"ps": "--quiet"}),
        (["--quiet", "--port=1"], {"quiet": "true", "port": "1"}),
        (["--quiet=F", "--port=1"], {"quiet": "F", "port": "1"}),
        (["--port=1", "--"], {"port": "1"}),
    ],
)
def test_parses_flags(arguments: list[str], values: dict[str, str]):
    assert parse_go_flags(arguments, KINDS) == ParsedFlags(values)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (["prot=22"], "is not a flag"),
        (["--prot=22"], "is not known"),
        (["-"], "is not a flag"),
        (["---port=22"], "is not a flag"),
        (["--=22"], "is not a flag"),
        (["--help"], "is not known"),
        (["--"], "ends the flags"),
        (["--quiet=yes"], "must be true or false, not 'yes'"),
        (["--quiet", "true"], "is not a flag"),
    ],
)
def test_parsing_stops_at_invalid_flag_and_keeps_earlier_values(bad: list[str], problem: str):
    found = parse_go_flags(["--ps=servers", *bad, "--port=2223"], KINDS)
    assert (found.problem, found.unread) == (problem, ("--port=2223",))
    assert found.values["ps"] == "servers"
    assert "port" not in found.values


def test_parsing_stops_at_invalid_number():
    found = parse_go_flags(["--port=no", "--ps=servers"], KINDS)
    assert (found.problem, found.unread, "ps" in found.values) == (
        "must be a whole number, not 'no'",
        ("--ps=servers",),
        False,
    )


def test_reports_flag_without_value():
    assert parse_go_flags(["--quiet", "--ps"], KINDS) == ParsedFlags({"quiet": "true"}, "--ps", "needs a value")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("22", 22),
        ("+22", 22),
        ("-1", -1),
        ("0", 0),
        ("0x16", 22),
        ("0b11", 3),
        ("017", 15),
        ("0o17", 15),
        ("0_17", 15),
        ("1_000", 1000),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", None),
        ("", None),
        ("08", None),
        ("2.2", None),
        (" 2", None),
        ("1__0", None),
        ("٣", None),
        ("9" * 5000, None),
    ],
)
def test_parses_numbers(text: str, value: int | None):
    assert parse_go_int(text) == value


@pytest.mark.parametrize("text", ["1", "t", "T", "true", "TRUE", "True", "0", "f", "F", "false", "FALSE", "False"])
def test_parses_booleans(text: str):
    assert parse_go_bool(text) is (text[0] in "1tT")


@pytest.mark.parametrize("text", ["", "yes", "tRUE", "on", "2"])
def test_refuses_invalid_booleans(text: str):
    assert parse_go_bool(text) is None
