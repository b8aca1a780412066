"""Identity of a task's jobs: task instance, try and state; names, labels and annotations derived from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tf_dist.core.model.names import ANNOTATION_PREFIX, short_hash

TASK_LABEL: Final = f"{ANNOTATION_PREFIX}airflow-task"
"""Label that Airflow's operator writes on a job: the task instance, the same for all its tries."""
OWNER_ANNOTATION: Final = f"{ANNOTATION_PREFIX}airflow-owner"
"""Annotation that Airflow's operator writes on a job: the try that owns the job. Other tries do not change the job."""
INSTANCE_ANNOTATION: Final = f"{ANNOTATION_PREFIX}airflow-task-instance"
"""Annotation that Airflow's operator writes on a job: the complete task instance. When a user ends the task
instance, the job is deleted.
"""
MARKED_FOR_DELETION: Final = f"{ANNOTATION_PREFIX}airflow-given-up-by"
"""Annotation that Airflow's operator writes on a job: the try that will delete the job. Later tries do not adopt
the job.
"""
RESULT_USED: Final = f"{ANNOTATION_PREFIX}airflow-result-taken-by"
"""Annotation that Airflow's operator writes on a job: the try that reported the success of the job."""
MAX_TRIES: Final = f"{ANNOTATION_PREFIX}airflow-max-tries"
"""Annotation that Airflow's operator writes on a job: ``max_tries`` of the task when the success of the job was
reported. A clear raises this number, and a retry does not.
"""
MASK_KEY: Final = f"{ANNOTATION_PREFIX}airflow-mask-key"
"""Annotation that Airflow's operator writes on a job whose document has secrets: the key of the sealed secrets that its
trigger gets.
"""

_LONGEST_NAME: Final = 40  # characters of a v1alpha1 job's name in the names of its pods
_LONGEST_LABEL: Final = 63
_HASH: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInstanceKey:
    """A task instance, the same for all its tries."""

    deployment: str
    """The name of the Airflow deployment, see ``airflow_deployment``."""
    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @property
    def label(self) -> str:
        """The value of ``TASK_LABEL``."""
        return short_hash(*self._parts(), length=20)

    @property
    def task(self) -> str:
        """The task, the same for all its runs."""
        return f"{self.deployment}/{self.dag_id}/{self.task_id}"

    def job_name(self, base: str, try_number: int) -> str:
        """The name of the job of a try. It is always the same, so that no try creates two jobs."""
        return f"{sanitized_name(base)}-{short_hash(*self._parts(), try_number, length=_HASH)}"

    def labels(self, try_number: int) -> dict[str, str]:
        """Labels for people, named as in the Kubernetes provider, and ``TASK_LABEL``."""
        shown = {"dag_id": self.dag_id, "task_id": self.task_id, "run_id": self.run_id, "try_number": str(try_number)}
        mapped = {"map_index": str(self.map_index)} if self.map_index >= 0 else {}
        return {key: label_value(value) for key, value in {**shown, **mapped}.items()} | {TASK_LABEL: self.label}

    def _parts(self) -> tuple[object, ...]:
        return self.deployment, self.dag_id, self.run_id, self.task_id, self.map_index


def sanitized_name(text: str) -> str:
    """A text as the first part of a job's name, without characters that Kubernetes rejects."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    plain = plain if plain[:1].isalpha() else f"job-{plain}"
    return plain[: _LONGEST_NAME - _HASH - 1].rstrip("-")


def owner_of_try(ti_id: object, try_number: int) -> str:
    """The value of ``OWNER_ANNOTATION`` for a try of a task instance."""
    return f"{ti_id}/{try_number}"


def annotations_of(stored: Mapping[str, object]) -> Mapping[str, str]:
    """The annotations of an object."""
    metadata = stored.get("metadata")
    found = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def label_value(text: str) -> str:
    """A text as the value of a label. Texts that do not fit are shortened and get a hash."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-_.")
    if plain == text and len(plain) <= _LONGEST_LABEL:
        return plain
    return f"{plain[: _LONGEST_LABEL - 6].rstrip('-_.')}-{short_hash(text)}".lstrip("-")


ENDED_STATES: Final = frozenset({"failed", "success", "skipped", "removed", "upstream_failed"})
"""States of a task that does not continue, because it has ended, or a user or its run ended it."""
ACTIVE_STATES: Final = frozenset({"running", "deferred"})
"""States of a task that a worker or a triggerer runs, or is about to run."""

StateQuery = Callable[..., Any]
"""The method ``get_task_states`` of a task instance."""


def task_state(instance: Any, ask: StateQuery) -> str | None:
    """The current state of a task instance; None if it has no state."""
    index = -1 if instance.map_index is None else int(instance.map_index)
    asked = {"map_index": index} if index >= 0 else {}
    found = ask(dag_id=instance.dag_id, task_ids=[instance.task_id], run_ids=[instance.run_id], **asked)
    state = (found.get(instance.run_id) or {}).get(task_key(instance.task_id, index))
    return None if state is None else str(state)


def task_key(task_id: str, map_index: int) -> str:
    """Airflow's key of a task instance in its run."""
    return task_id if map_index < 0 else f"{task_id}_{map_index}"
