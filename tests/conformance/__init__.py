"""The originals' own cases, by their sources: what tf-dist makes of the same documents."""
