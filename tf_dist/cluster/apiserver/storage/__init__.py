"""The storage of the embedded API server: the versioned store, admission, patches, lists, watches, deletion."""
