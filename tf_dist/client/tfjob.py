"""A TFJob in Python, for those who would rather not write YAML: what most jobs set, and a way to the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tf_dist.core.api.job import Dialect

_CONTAINER: Final = "tensorflow"


@dataclass(frozen=True, slots=True, kw_only=True)
class TFJob:
    """A ``kubeflow.org/v1`` TFJob whose replicas all run the same command; ``document`` is what is submitted.

    ``workers``, ``ps``, ``evaluators``: how many; ``chief``: whether there is one beside the workers (else worker 0
    leads). ``resources``: requests of each replica (``{"cpu": "2", "nvidia.com/gpu": 1}``; GPUs are limits, too).
    ``restart_policy`` of all but parameter servers, which are always needed again. ``pod``: further fields of every
    pod's spec, ``container``: of every container, ``run_policy``: of the job, as Kubernetes and TFJob have them.
    """

    name: str = ""
    image: str
    command: Sequence[str] = ()
    args: Sequence[str] = ()
    workers: int = 1
    ps: int = 0
    chief: bool = False
    evaluators: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    restart_policy: str = "ExitCode"
    pod: Mapping[str, Any] = field(default_factory=dict)
    container: Mapping[str, Any] = field(default_factory=dict)
    run_policy: Mapping[str, Any] = field(default_factory=lambda: {"cleanPodPolicy": "Running"})
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The job as plain data. What is wrong with it is said when it is read."""
        counts = {"Chief": int(self.chief), "PS": self.ps, "Worker": self.workers, "Evaluator": self.evaluators}
        metadata = _given(
            name=self.name or None, labels=dict(self.labels) or None, annotations=dict(self.annotations) or None
        )
        replicas = {name: self._replicas(name, count) for name, count in counts.items() if count}
        spec = _given(runPolicy=dict(self.run_policy) or None, tfReplicaSpecs=replicas)
        return {
            "apiVersion": Dialect.TFJOB_V1.value,
            "kind": Dialect.TFJOB_V1.kind,
            "metadata": metadata,
            "spec": spec,
        }

    def _replicas(self, name: str, count: int) -> dict[str, Any]:
        policy = "OnFailure" if name == "PS" else self.restart_policy
        template = {"spec": {**self.pod, "containers": [self._container()]}}
        return {"replicas": count, "restartPolicy": policy, "template": template}

    def _container(self) -> dict[str, Any]:
        limits = {key: value for key, value in self.resources.items() if "/" in key}
        resources = _given(requests=dict(self.resources) or None, limits=limits or None)
        return _given(
            name=_CONTAINER,
            image=self.image,
            command=_words(self.command) or None,
            args=_words(self.args) or None,
            env=[{"name": key, "value": value} for key, value in self.env.items()] or None,
            resources=resources or None,
            **self.container,
        )


def _given(**values: object) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _words(given: Sequence[str]) -> Sequence[str]:
    """As a list; a text stays one, to be refused: its letters are no words."""
    return given if isinstance(given, str) else list(given)
