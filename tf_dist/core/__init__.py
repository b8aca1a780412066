"""Decisions: pure functions without a clock, randomness or I/O. import-linter checks their imports."""
