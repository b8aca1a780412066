"""What tf-dist puts into a cluster, as plain objects: values in, dicts out, nothing is read and nothing is written."""
