"""Other gang schedulers than tf-dist: the objects for them, and how their decisions are read."""
