"""The job, its status, pods as decisions see them, and the plan that ``reconcile`` returns."""
