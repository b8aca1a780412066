"""Decisions of one pipeline step: adoption of an earlier try, shutdown, inputs, the result of a wait."""
