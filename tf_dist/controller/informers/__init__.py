"""Informers of everything a driver decides on, as far as its rights reach."""
