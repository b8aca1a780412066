"""What all tasks or triggers of one process share: a job informer, at most one controller, log followers."""
