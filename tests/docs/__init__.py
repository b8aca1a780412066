"""The documentation: the reference is complete, and commands and code work."""
