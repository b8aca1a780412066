"""Behaviour of the original projects, case by case, as tables. Each test names the original test or function."""
