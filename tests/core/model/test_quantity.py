from __future__ import annotations

import contextlib
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_dist.core.model.quantity import format_quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", "0"),
        ("2", "2"),
        (2, "2"),
        (0.5, "0.5"),
        (1e-7, "0.0000001"),
        ("+1", "1"),
        ("-1", "-1"),
        (".5", "0.5"),
        ("5.", "5"),
        ("500m", "0.5"),
        ("3u", "0.000003"),
        ("3n", "0.000000003"),
        ("1k", "1000"),
        ("1M", "1000000"),
        ("1G", "1000000000"),
        ("1E", "1000000000000000000"),
        ("1E3", "1000"),
        ("1e-3", "0.001"),
        ("1Ki", "1024"),
        ("64Gi", "68719476736"),
        ("1.5Gi", "1610612736"),
        ("8Ei", "9223372036854775808"),
    ],
)
def test_reads_quantities_exactly(text: str | int | float, value: str) -> None:
    assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "NaN",
        "inf",
        "Infinity",
        "1_000",
        "1,5",
        "١٢",
        "1K",
        "1 Gi",
        " 1",
        "1\n",
        "1g",
        "0x10",
        "1e",
        "1e1.5",
        "1e9999999",
        "--1",
        ".",
        "Gi",
        "1GiB",
        float("nan"),
        float("inf"),
        True,
        None,
        [],
    ],
)
def test_refuses_quantities_that_the_api_refuses(text: object) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)  # type: ignore[arg-type]


@given(st.text())
def test_invalid_text_raises_only_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_quantity(text).is_finite()


@pytest.mark.parametrize(
    ("text", "resource", "shown"),
    [
        ("500m", "cpu", "500m"),
        ("0.0001", "cpu", "1m"),
        ("4", "nvidia.com/gpu", "4"),
        ("64Gi", "memory", "64Gi"),
        ("1.5Gi", "memory", "1.5Gi"),
        ("1000", "memory", "1000"),
        ("24684092Ki", "memory", "23.5Gi"),
        ("0", "memory", "0"),
        ("-1Gi", "memory", "-1073741824"),
        ("1Ti", "ephemeral-storage", "1Ti"),
        ("2Mi", "hugepages-2Mi", "2Mi"),
    ],
)
def test_formats_quantities_as_users_write_them(text: str, resource: str, shown: str) -> None:
    assert format_quantity(parse_quantity(text), resource) == shown


@given(st.integers(0, 10**15), st.sampled_from(("cpu", "nvidia.com/gpu")))
def test_whole_numbers_are_shown_exactly(value: int, resource: str) -> None:
    assert parse_quantity(format_quantity(Decimal(value), resource)) == value


@given(st.integers(0, 10**15))
def test_memory_is_rounded_down_by_at_most_a_tenth(value: int) -> None:
    shown = parse_quantity(format_quantity(Decimal(value), "memory"))
    assert value * Decimal("0.9") <= shown <= value
