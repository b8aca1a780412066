"""The commands. They import large modules only when they run, so that the help appears without delay."""
