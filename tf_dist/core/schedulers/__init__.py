"""Gang schedulers other than tf-dist itself: what to make for them, and how to read what they say."""
