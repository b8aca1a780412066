"""The runtime supervisor: a separate process that uses only the standard library, and the parent of every pod.

It runs as ``python -I -S -E .../runtime/__main__.py CONFIG`` and serves a unix socket (protocol: ``event_loop``).
Nothing here imports the rest of tf-dist, so that it starts in about 20 ms.
"""
