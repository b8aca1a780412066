"""Objects of a job: pods, Services, TF_CONFIG, and the objects of Volcano's plugins."""
