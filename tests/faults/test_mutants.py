"""Every listed mutant applies to the current code and compiles."""

from __future__ import annotations

import pytest

from tests.faults.mutants import PACKAGE, mutated
from tests.faults.mutants_list import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_applies_and_compiles(mutant: Mutant) -> None:
    compile(mutated(mutant), mutant.file, "exec")
    assert mutated(mutant) != (PACKAGE / mutant.file).read_text()
