"""A kubelet that runs each pod's containers as local processes.

``agent.NodeAgent`` is the way in, ``settings.NodeSettings`` its knobs. ``lifecycle``, ``status``, ``podspec`` and
``hosts`` decide and are pure; ``runtime`` is the supervisor, a process of its own. Nothing is imported here: the
supervisor passes through this package on its way up and must start fast.
"""
