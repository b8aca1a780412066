"""Decisions: pure functions over values. No clock, no dice, no I/O; import-linter holds it to that."""
