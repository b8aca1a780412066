"""The operator, and what one try of its task does."""
