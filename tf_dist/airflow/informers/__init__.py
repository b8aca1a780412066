"""Informers that all tasks of one process share: jobs are listed and watched once, whatever number of tasks wait."""
