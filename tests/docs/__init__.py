"""The documentation: its reference is complete, its commands and code work."""
