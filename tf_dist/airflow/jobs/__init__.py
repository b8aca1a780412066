"""Jobs of tasks: identity, request, adoption and deletion, outcome."""
