"""Extra links of a task: its job, TensorBoard, the checkpoint."""
