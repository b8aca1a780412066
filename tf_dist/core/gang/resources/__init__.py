"""Resources of nodes, pods, queues and namespaces, read from stored objects."""
