"""The only loop: look at the cluster, decide in the core, do what was decided, sleep until woken."""
