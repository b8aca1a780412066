"""What ``tf_dist.airflow`` has, for type checkers; it is imported when it is first used."""

from tf_dist.airflow.callbacks import TFJobCallbacks as TFJobCallbacks
from tf_dist.airflow.decorators.tfjob import tfjob_task as tfjob_task
from tf_dist.airflow.hooks.tfjob import TFJobHook as TFJobHook
from tf_dist.airflow.operators.job_actions import DeleteTFJobOperator as DeleteTFJobOperator
from tf_dist.airflow.operators.job_actions import ResumeTFJobOperator as ResumeTFJobOperator
from tf_dist.airflow.operators.job_actions import ScaleTFJobOperator as ScaleTFJobOperator
from tf_dist.airflow.operators.job_actions import SubmitTFJobOperator as SubmitTFJobOperator
from tf_dist.airflow.operators.job_actions import SuspendTFJobOperator as SuspendTFJobOperator
from tf_dist.airflow.operators.tfjob import TFJobOperator as TFJobOperator
from tf_dist.airflow.sensors.tfjob import GangAdmittedSensor as GangAdmittedSensor
from tf_dist.airflow.sensors.tfjob import TFJobSensor as TFJobSensor
from tf_dist.airflow.triggers.tfjob import TFJobTrigger as TFJobTrigger
from tf_dist.client.tfjob import TFJob as TFJob
from tf_dist.errors import AdmissionTimeout as AdmissionTimeout
from tf_dist.errors import ImagePullFailed as ImagePullFailed
from tf_dist.errors import JobEvicted as JobEvicted
from tf_dist.errors import JobFailed as JobFailed
from tf_dist.errors import JobTimeout as JobTimeout
