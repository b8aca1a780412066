"""The commands. Nothing heavy is imported before one runs: help must be there at once."""
