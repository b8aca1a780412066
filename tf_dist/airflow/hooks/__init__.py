"""The hook, and the cluster that a connection and a task's arguments name."""
