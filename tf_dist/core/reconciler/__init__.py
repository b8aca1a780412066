"""Reconciler."""
