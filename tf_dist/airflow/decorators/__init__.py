"""The task decorator ``@task.tfjob``."""
