"""One module per command. Nothing heavy is imported before a command runs: help must be there at once."""
