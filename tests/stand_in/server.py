"""Replaces TensorFlow in the standard parameter server of v1alpha1 (``core/podbuilder/tf_config``)."""

from types import SimpleNamespace


class Server:
    """A server that only has an address."""

    def __init__(self, cluster: dict[str, list[str]], *, job_name: str, task_index: int) -> None:
        self.target = f"grpc://{cluster[job_name][task_index]}"


compat = SimpleNamespace(v1=SimpleNamespace(train=SimpleNamespace(Server=Server, ClusterSpec=dict)))
