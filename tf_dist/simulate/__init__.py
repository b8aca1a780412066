"""A cluster on a virtual clock: runs a trace of jobs under different admission policies."""
