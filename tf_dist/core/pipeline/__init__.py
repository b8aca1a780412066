"""Decisions of a pipeline step: adoption of an earlier try, shutdown, inputs, the result of a wait."""
