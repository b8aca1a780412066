"""Gang admission in a cluster: one leader decides for all drivers, and records admissions before it gives them."""
