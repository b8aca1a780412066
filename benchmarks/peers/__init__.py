"""tf-dist beside Kueue on one API server: the same gangs, the same load client, one controller at a time, in turn."""
