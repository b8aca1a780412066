"""Rules of pods that an API server checks in addition to types.

A rule belongs to a type of Kubernetes' API, wherever a pod has an object of that type. ``pod_template`` checks
relations between parts of a pod.
"""
