"""The runtime supervisor: a process of its own, standard library only, parent of every pod.

It runs as ``python -I -S -E .../runtime/__main__.py CONFIG`` and is spoken to over a unix socket (``wire``).
Nothing here imports the rest of tf-dist, so that it starts in about 20 ms.
"""
