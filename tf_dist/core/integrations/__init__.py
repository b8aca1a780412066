"""Gang schedulers other than tf-dist: the objects for them, and how to read their decisions."""
