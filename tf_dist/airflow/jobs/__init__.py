"""Jobs of tasks: identity, request, adoption, ownership, wait, log and outcome."""
