from tf_dist.client.tfjob import TFJob as TFJob
from tf_dist.errors import InvalidJob as InvalidJob
from tf_dist.errors import Problem as Problem
from tf_dist.errors import TFDistError as TFDistError

__version__: str
__all__ = ["InvalidJob", "Problem", "TFDistError", "TFJob", "__version__"]
