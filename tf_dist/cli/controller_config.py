"""The configuration file of a TFJob v1alpha1 controller (``--controller-config-file``)."""

from __future__ import annotations

from tf_dist.client.job_files import InvalidFiles
from tf_dist.client.yaml_files import FileProblem, read_yaml_file
from tf_dist.core.dialects.kubeflow_extensions.accelerators import Accelerators, parse_controller_config
from tf_dist.errors import InvalidJob, Problem


def read_accelerators(file: str) -> Accelerators:
    """The accelerators that a file configures; none if no file is named. InvalidFiles says what is wrong with it."""
    if not file:
        return {}
    documents, problems = read_yaml_file(file, "a configuration begins with accelerators:")
    if len(documents) > 1:
        message = f"holds {len(documents)} documents; a configuration is one"
        problems.append(FileProblem(documents[0].file, None, 0, Problem("", message, "keep the one with accelerators")))
    if problems:
        raise InvalidFiles(problems)
    written = documents[0]
    try:
        return parse_controller_config(written.content)
    except InvalidJob as error:
        raise InvalidFiles(
            FileProblem(written.file, None, written.line(problem.path), problem) for problem in error.problems
        ) from None
