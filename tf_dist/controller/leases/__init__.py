"""Leases: leader election, and the right to write that follows from it."""
