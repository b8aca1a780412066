"""The page on scale contains the results that its script computes from the measurements."""

from __future__ import annotations

from xml.etree import ElementTree

from benchmarks import scale


def test_tables_and_pictures_match_measurements() -> None:
    found = scale.stored()
    assert scale.PAGE.read_text() == scale.page(scale.PAGE.read_text(), found), "run python -m benchmarks.scale docs"
    for name, picture in scale.charts(found).items():
        assert scale.PAGE.with_name(name).read_text() == picture, "run python -m benchmarks.scale docs"
        assert ElementTree.fromstring(picture).tag.endswith("svg")
