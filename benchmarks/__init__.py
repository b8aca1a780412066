"""What tf-dist measures of itself: ``python -m benchmarks [NAME…]`` prints a table and writes ``results.json``."""
