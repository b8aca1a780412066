"""Reconciliation of one job: status transitions, and the actions that follow from the status."""
