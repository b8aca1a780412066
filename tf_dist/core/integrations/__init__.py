"""Gang schedulers other than tf-dist: which objects to make for them, and how to read their answers."""
