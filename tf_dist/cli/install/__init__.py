"""What ``tf-dist install`` prints, and the check of the cluster that it goes to."""
