"""The control loop: observe the cluster through informers, decide in the core, carry out the plan, wait for
changes.
"""
