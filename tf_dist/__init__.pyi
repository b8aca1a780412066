from tf_dist.client.client import Client as Client
from tf_dist.client.client import run as run
from tf_dist.client.run_session import Result as Result
from tf_dist.client.stored_jobs import StoredJob as StoredJob
from tf_dist.client.tfjob import TFJob as TFJob
from tf_dist.core.diagnostics.outcome import Outcome as Outcome
from tf_dist.core.model.reasons import OutcomeKind as OutcomeKind
from tf_dist.errors import InvalidJob as InvalidJob
from tf_dist.errors import JobFailed as JobFailed
from tf_dist.errors import Problem as Problem
from tf_dist.errors import TFDistError as TFDistError

__version__: str
__all__ = [
    "Client",
    "InvalidJob",
    "JobFailed",
    "Outcome",
    "OutcomeKind",
    "Problem",
    "Result",
    "StoredJob",
    "TFDistError",
    "TFJob",
    "__version__",
    "run",
]
