"""Leases: leader election, liveness of drivers, and the right to write that follows from both."""
