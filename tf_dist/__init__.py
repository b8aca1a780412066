"""Distributed TensorFlow jobs (parameter servers and workers) as first-class steps of pipelines."""

__version__ = "0.1.0.dev0"
