"""A kubelet that runs each pod's containers as local processes.

``kubelet.Kubelet`` is the entry point, ``node.node_settings.NodeSettings`` its settings. In ``pod``, ``pod_lifecycle``,
``pod_status`` and ``podspec`` decide and are pure; ``runtime`` is the supervisor, a process of its own. Nothing is
imported here: the supervisor imports this package when it starts, and must start fast.
"""
