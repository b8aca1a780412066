"""Everything that touches a cluster: the protocol, its implementations, and the node agent."""
