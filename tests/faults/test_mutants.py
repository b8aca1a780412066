"""The list of mutants does not rot: each still applies to the code as it is, and is still a program."""

from __future__ import annotations

import pytest

from tests.faults.mutants import PACKAGE, mutated
from tests.faults.mutants_list import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_still_applies_and_compiles(mutant: Mutant) -> None:
    compile(mutated(mutant), mutant.file, "exec")
    assert mutated(mutant) != (PACKAGE / mutant.file).read_text()
