"""Informers of everything that a controller decides on, within its rights."""
