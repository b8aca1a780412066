"""What a Volcano Job says beside tasks and policies: job plugins, annotations of the scheduler, and related kinds."""
