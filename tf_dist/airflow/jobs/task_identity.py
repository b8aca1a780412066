"""Identity of a task's jobs: task instance, try and state; names, labels and annotations derived from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tf_dist.core.model.names import ANNOTATION_PREFIX, short_hash

TASK_LABEL: Final = f"{ANNOTATION_PREFIX}airflow-task"
"""Label that Airflow's operator writes on a job: the task instance, the same for each of its tries."""
OWNER_ANNOTATION: Final = f"{ANNOTATION_PREFIX}airflow-owner"
"""Annotation that Airflow's operator writes on a job: the try it belongs to; another one leaves the job alone."""
INSTANCE_ANNOTATION: Final = f"{ANNOTATION_PREFIX}airflow-task-instance"
"""Annotation that Airflow's operator writes on a job: the task instance in full; who ends the task ends it, too."""
MARKED_FOR_DELETION: Final = f"{ANNOTATION_PREFIX}airflow-given-up-by"
"""Annotation that Airflow's operator writes on a job: the try that is about to delete it; no later one adopts it."""
RESULT_USED: Final = f"{ANNOTATION_PREFIX}airflow-result-taken-by"
"""Annotation that Airflow's operator writes on a job: the try that has reported its success."""
MAX_TRIES: Final = f"{ANNOTATION_PREFIX}airflow-max-tries"
"""Annotation that Airflow's operator writes on a job: the task's ``max_tries`` when its success was reported: a clear
raises it, a retry does not."""
MASK_KEY: Final = f"{ANNOTATION_PREFIX}airflow-mask-key"
"""Annotation that Airflow's operator writes on a job whose document has secrets that Airflow masks: the key with which
the list that its trigger gets is sealed."""

_LONGEST_NAME: Final = 40  # what v1alpha1 keeps of a name in those of its pods
_LONGEST_LABEL: Final = 63
_HASH: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInstanceKey:
    """One task instance, over all its tries. ``deployment`` identifies the Airflow."""

    deployment: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @property
    def label(self) -> str:
        """The value of the label TASK."""
        return short_hash(*self._parts(), length=20)

    @property
    def task(self) -> str:
        """The task itself, over all its runs."""
        return f"{self.deployment}/{self.dag_id}/{self.task_id}"

    def job_name(self, base: str, try_number: int) -> str:
        """The name of the job that this try makes: the same however often it is asked, so that none is made twice."""
        return f"{sanitized_name(base)}-{short_hash(*self._parts(), try_number, length=_HASH)}"

    def labels(self, try_number: int) -> dict[str, str]:
        """Labels for people, named as the Kubernetes provider names them, and the one that counts."""
        shown = {"dag_id": self.dag_id, "task_id": self.task_id, "run_id": self.run_id, "try_number": str(try_number)}
        mapped = {"map_index": str(self.map_index)} if self.map_index >= 0 else {}
        return {key: label_value(value) for key, value in {**shown, **mapped}.items()} | {TASK_LABEL: self.label}

    def _parts(self) -> tuple[object, ...]:
        return self.deployment, self.dag_id, self.run_id, self.task_id, self.map_index


def sanitized_name(text: str) -> str:
    """A text as the first part of a job's name: what Kubernetes does not take is left out."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    plain = plain if plain[:1].isalpha() else f"job-{plain}"
    return plain[: _LONGEST_NAME - _HASH - 1].rstrip("-")


def owner_of_try(ti_id: object, try_number: int) -> str:
    """One try of a task instance, as OWNER names it."""
    return f"{ti_id}/{try_number}"


def annotations_of(stored: Mapping[str, object]) -> Mapping[str, str]:
    """The annotations of an object."""
    metadata = stored.get("metadata")
    found = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def label_value(text: str) -> str:
    """A text as a label's value: as it is where that can be, else shortened, with a hash that distinguishes it."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-_.")
    if plain == text and len(plain) <= _LONGEST_LABEL:
        return plain
    return f"{plain[: _LONGEST_LABEL - 6].rstrip('-_.')}-{short_hash(text)}".lstrip("-")


ENDED_STATES: Final = frozenset({"failed", "success", "skipped", "removed", "upstream_failed"})
"""The task does not go on: a user (or a policy of its run) has ended it, or it has."""
ACTIVE_STATES: Final = frozenset({"running", "deferred"})
"""Some process works for the task, or will in any case."""

StateQuery = Callable[..., Any]
"""``get_task_states`` of a task instance."""


def task_state(instance: Any, ask: StateQuery) -> str | None:
    """The state of a task instance at this moment, None while it has none."""
    index = -1 if instance.map_index is None else int(instance.map_index)
    asked = {"map_index": index} if index >= 0 else {}
    found = ask(dag_id=instance.dag_id, task_ids=[instance.task_id], run_ids=[instance.run_id], **asked)
    state = (found.get(instance.run_id) or {}).get(task_key(instance.task_id, index))
    return None if state is None else str(state)


def task_key(task_id: str, map_index: int) -> str:
    """How Airflow names a task instance among those of its run."""
    return task_id if map_index < 0 else f"{task_id}_{map_index}"
