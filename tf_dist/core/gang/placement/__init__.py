"""Placement of gangs on nodes: predicates, free resources, and the search for nodes."""
