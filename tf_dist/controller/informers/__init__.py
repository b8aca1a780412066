"""Informers of all objects that a controller's decisions depend on, within its permissions."""
