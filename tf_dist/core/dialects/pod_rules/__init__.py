"""What an API server refuses of a pod though every value is of its type.

A rule belongs to a type of Kubernetes' API, wherever a pod has an object of that type. How the parts of a pod go
together is checked by ``pod_template``.
"""
