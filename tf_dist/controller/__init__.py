"""The control loop: observe through informers, decide in the core, carry out the plan, wait for changes."""
