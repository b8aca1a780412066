"""The objects that ``tf-dist install`` puts into a cluster, as plain data: nothing is written anywhere."""
