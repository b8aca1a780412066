"""Podbuilder."""
