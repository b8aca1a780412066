"""Objects of a job: pods, services, TF_CONFIG, and those of Volcano's plugins."""
