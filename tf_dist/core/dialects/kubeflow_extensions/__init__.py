"""What controllers of TFJob v1alpha1 were configured with, and what the DRAGON fork added to the format."""
