"""The list of mutants does not rot: each still applies to the code as it is, and is still a program."""

from __future__ import annotations

import pytest

from tests.faults.mutants import PACKAGE, Outdated, mutated
from tests.faults.mutants_list import MUTANTS, Mutant


def test_there_are_enough_of_them() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_still_applies_and_compiles(mutant: Mutant) -> None:
    compile(mutated(mutant), mutant.file, "exec")
    assert mutated(mutant) != (PACKAGE / mutant.file).read_text()


@pytest.mark.parametrize(
    ("old", "new"), [("nowhere to be found", ""), ("\n", ""), ("from __future__ import", "from __future__ import")]
)
def test_one_that_does_not_apply_is_told(old: str, new: str) -> None:
    with pytest.raises(Outdated, match="loop"):
        mutated(Mutant("loop", "controller/controller.py", old, new, ""))
