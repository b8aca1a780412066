"""Observability of a controller: metrics, probes and logs."""
