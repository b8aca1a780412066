"""One pod on its node: from its spec to running containers, and from these to its status."""
