"""Parts of a Volcano Job other than tasks and policies: job plugins, annotations of the scheduler, and
related kinds.
"""
