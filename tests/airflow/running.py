"""Run DAGs in this process with ``dag.test()``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import DAG


@dataclass(frozen=True)
class Run:
    """The result of a run."""

    state: str
    tasks: dict[str, str]
    dag_run: Any

    def xcom(self, task_id: str, key: str = "return_value") -> Any:
        (found,) = [ti for ti in self.dag_run.get_task_instances() if ti.task_id == task_id]
        return found.xcom_pull(task_ids=task_id, key=key)


def read_dags(path: Path) -> Any:
    """The DAGs of a file, read by Airflow."""
    try:
        from airflow.dag_processing.dagbag import DagBag
    except ImportError:  # before 3.2
        from airflow.models.dagbag import DagBag
    return DagBag(str(path))


def run(dag: DAG, **arguments: Any) -> Run:
    """Run a DAG that a test defines."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.serialization.serialized_objects import LazyDeserializedDAG
    from airflow.utils.session import create_session

    try:
        from airflow.serialization.definitions.dag import SerializedDAG
    except ImportError:  # before 3.2
        from airflow.serialization.serialized_objects import SerializedDAG
    DagBundlesManager().sync_bundles_to_db()
    if hasattr(LazyDeserializedDAG, "from_dag"):
        stored: Any = LazyDeserializedDAG.from_dag(dag)
    else:  # before 3.1
        stored = SerializedDAG.from_dict(SerializedDAG.to_dict(dag))
    with create_session() as session:
        SerializedDAG.bulk_write_to_db("dags-folder", None, [stored], session=session)
        SerializedDagModel.write_dag(stored, bundle_name="dags-folder", session=session)
    found = dag.test(**arguments)
    tasks = {ti.task_id: str(ti.state) for ti in found.get_task_instances()}
    return Run(str(found.state), tasks, found)
