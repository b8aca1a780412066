"""The manifests that ``tf-dist install`` prints, and the check of the target cluster."""
