"""What ``tf-dist run`` is made of: checks before the start, the session, its views, the summary."""
