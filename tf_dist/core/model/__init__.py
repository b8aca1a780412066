"""The job, its status, pods reduced to what decisions need, and the plan that ``reconcile`` returns."""
