"""The machine as a Node: its state folder, runtime supervisor, Lease and registration."""
