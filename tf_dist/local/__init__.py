"""tf-dist on one machine: the embedded cluster as one object, and the daemon of ``tf-dist local``."""
