"""The layout of the package: no name with two meanings, plain words."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import tf_dist

PACKAGE = Path(tf_dist.__file__).parent
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py"))
SAME_NAME = {
    "tfjob": "providers of Airflow name operator, hook, trigger, sensor, links after the one thing they are for",
    "main": "the entry points of the command line and of the launcher",
    "kubelet": "the Kubelet of the package kubelet",
    "simulate": "the command and the simulator",
}

# Words for a client, a leader, a gang that is preempted: the field has names for them.
RIDDLES = re.compile(
    r"\b(whoever|nobody|somebody|anybody|everybody|someone|anyone|everyone|is told|hears of|gives? way|stories of"
    r"|ha(s|ve) (its|their) place)\b",
    re.IGNORECASE,
)
UNIX_ACCOUNT = "nobody"  # what containers of the kubelet's tests run as
ROOT = PACKAGE.parent
TEXTS = sorted(
    path
    for folder in ("tf_dist", "tests", "docs", "dags", "workflows", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".md", ".yaml") and path != Path(__file__)
)


def test_no_two_modules_have_one_name() -> None:
    counted = Counter(path.stem for path in MODULES)
    assert {name for name, count in counted.items() if count > 1} <= SAME_NAME.keys()


def test_texts_say_who_is_meant() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in TEXTS
        for match in RIDDLES.finditer(path.read_text())
        if not (match[0].lower() == UNIX_ACCOUNT and "kubelet" in path.parts)
    ]
    assert found == []
