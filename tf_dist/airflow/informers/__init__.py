"""Informers that all tasks of a process share. Jobs are listed and watched once, for any number of waiting tasks."""
