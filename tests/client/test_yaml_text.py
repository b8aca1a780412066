"""All YAML readers read text in written YAML as text."""

from __future__ import annotations

import pytest
import yaml

from tf_dist.client.yaml_files import to_yaml

# Without quotes, these are booleans or numbers for Go's yaml.v2, which kubectl and Argo use.
_OTHERS_IN_GO = (
    *("y", "n", "Y", "N", "12e03", "1e3", "1.e5", ".5e1", "09", "-09.5", "0o17", "1_0e2", "+1e+3"),
    *("0X1F", "0B101", "0O17", "+0X1f", "0_x1F", "-_1", "-_1.5", "0b-1", "1_e5_"),
)
_TEXT = ("yes", "null", "1_000", "0x1f", "0777", "2024-01-01", "")
_PLAIN = ("yn", "e3", "1e3x", "1.2.3", "-", "v1", "0o19", "a1e3", "12e", "10.0.0.1", "0xg", "0b2", "0x", "-_", "_1")


@pytest.mark.parametrize("value", _OTHERS_IN_GO + _TEXT)
def test_ambiguous_text_is_quoted(value: str):
    written = to_yaml({"value": value, value: "key"})
    assert written == f"value: '{value}'\n'{value}': key\n"
    assert yaml.safe_load(written) == {"value": value, value: "key"}


@pytest.mark.parametrize("value", _PLAIN)
def test_plain_text_is_not_quoted(value: str):
    assert to_yaml({"value": value}) in (f"value: {value}\n", f"value: '{value}'\n" if value == "-" else "")


@pytest.mark.parametrize("value", [True, False, 3, 0.5, 1e3, 1e300, -2.5e-9, None])
def test_other_values_are_not_quoted(value: object):
    written = to_yaml([{"value": value}])
    assert "'" not in written
    assert yaml.safe_load(written) == {"value": value}
