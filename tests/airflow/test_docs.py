"""The code blocks in docs/airflow.md work unchanged."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

from airflow.sdk import DAG

PAGE = (Path(__file__).parents[2] / "docs" / "airflow.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_code_block_runs(number: int) -> None:
    names = {"__name__": "__piece__"}
    with DAG(f"piece-{number}"):
        exec(compile(BLOCKS[number], f"docs/airflow.md, piece {number}", "exec"), names)
    assert len(names) > 2, "it defines something"


def test_all_code_blocks_are_extracted() -> None:
    assert len(BLOCKS) == PAGE.count("```python") > 0


def test_page_lists_all_dags_and_only_existing_arguments() -> None:
    import tf_dist.airflow

    dags = {path.stem for path in (Path(__file__).parents[2] / "dags").glob("*.py")}
    listed = PAGE.partition("\n| DAG |")[2].partition("\n\n")[0]
    assert dags == set(re.findall(r"^\| `(\w+)` \|", listed, flags=re.MULTILINE))
    told = set(re.findall(r"`(\w+)=", PAGE))
    kinds = [
        getattr(tf_dist.airflow, name) for name in tf_dist.airflow.__all__ if name.endswith(("Operator", "Sensor"))
    ]
    assert told <= {
        name for kind in kinds for one in kind.__mro__[:-1] for name in inspect.signature(one.__init__).parameters
    }
