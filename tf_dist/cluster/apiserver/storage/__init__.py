"""What the embedded API server keeps: the versioned store, admission of objects, patches, lists, watches, deletion."""
