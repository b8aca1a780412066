"""The page on scale says what its script computes from what was measured."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks import scale


def test_the_tables_and_pictures_are_those_of_what_was_measured() -> None:
    found = scale.stored()
    assert scale.PAGE.read_text() == scale.page(scale.PAGE.read_text(), found), "run python -m benchmarks.scale docs"
    for name, picture in scale.charts(found).items():
        assert scale.PAGE.with_name(name).read_text() == picture, "run python -m benchmarks.scale docs"
        assert ElementTree.fromstring(picture).tag.endswith("svg")


def test_a_page_without_a_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="no table admission"):
        scale.page("# nothing", scale.stored())


def test_twice_the_nodes_are_twice_the_load() -> None:
    costs = scale.stored()["costs"]
    one, two = (scale.Load(nodes, 3600.0, costs) for nodes in (10_000, 20_000))
    assert two.jobs == 2 * one.jobs
    assert two.everything("etcd_ms") == pytest.approx(2 * one.everything("etcd_ms"))
    assert one.gib(2) - one.gib(1) == pytest.approx(costs["status"]["bytes"] / (1 << 30))
    assert scale.waiting_gangs_in_etcd(costs, 10_000) > scale.waiting_gangs_in_etcd(costs, 20_000)
