"""The hook, and the cluster that a connection and the arguments of a task name."""
