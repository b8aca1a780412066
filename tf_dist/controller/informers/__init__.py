"""Informers of everything a controller decides on, as far as its rights reach."""
