"""A kubelet that runs each pod's containers as local processes.

``kubelet.Kubelet`` is the entry point, ``node.node_settings.NodeSettings`` its settings. In ``pod``, the modules
``pod_lifecycle``, ``pod_status`` and ``podspec`` make the decisions and are pure. ``runtime`` is the supervisor, which
is a separate process. This module imports nothing, because the supervisor imports this package when it starts, and must
start fast.
"""
