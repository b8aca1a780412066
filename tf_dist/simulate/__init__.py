"""A cluster on a virtual clock: what a trace of jobs goes through under one policy of admission or another."""
