"""What tf-dist measures of itself: ``python -m benchmarks [NAME…]`` writes ``results.json`` and the page of it."""
