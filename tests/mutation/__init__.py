"""How many small changes of the code the tests notice: ``make mutants``, see docs/testing.md."""
