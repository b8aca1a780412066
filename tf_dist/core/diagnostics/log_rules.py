"""Known log lines of programs: their meaning, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from tf_dist.core.diagnostics.log_end import failure_reasons


class Gpus(StrEnum):
    """The replicas to which a rule applies. In a job with GPUs, a replica without a GPU is intended."""

    ANY = "any"
    ASKED = "asked"
    NOT_ASKED = "not asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRule:
    """The meaning of a text in a log."""

    texts: tuple[str, ...]
    """The alternative texts. The rule matches if the log contains any of them."""
    category: Literal["command", "configuration"]
    """The category of the diagnosis."""
    summary: str
    """The text of a warning, after the name of the replica."""
    resolution: str
    """What to do."""
    ends: bool = True
    """Whether the error usually ends the program. Then the rule explains a failure, and does not warn while it runs."""
    gpus: Gpus = Gpus.ANY
    """Whether the rule applies only to replicas that request a GPU, or only to jobs that request no GPU."""


_LEGACY_KERAS: Final = (
    "set TF_USE_LEGACY_KERAS=1 (tf-dist run --env TF_USE_LEGACY_KERAS=1), install tf_keras where the container runs "
    "(pip install tf_keras), and use tf.keras, not import keras: docs/your-script.md"
)

LOG_RULES: Final = (
    LogRule(
        texts=('exec: "/bin/sh": stat',),  # as containerd reports it
        category="command",
        summary="has no shell",
        resolution=(
            "the image has no /bin/sh, with which code is unpacked and packages are installed: use an image that has "
            "it, or put the code into the image"
        ),
    ),
    LogRule(
        texts=("was not installed, see the lines before",),  # the output of the init container for packages
        category="configuration",
        summary="cannot install a package",
        resolution=(
            "check the name and the version of the package; if pods cannot reach the package index, name one that they "
            "reach (--env PIP_INDEX_URL=URL), or take an image that has the package"
        ),
    ),
    LogRule(
        texts=("values.PerReplica'>) to a Tensor",),
        category="command",
        summary="trains a model of Keras 3 with MultiWorkerMirroredStrategy, which Keras 3 does not support",
        resolution=f"Keras 3 does not support MultiWorkerMirroredStrategy: {_LEGACY_KERAS}",
    ),
    LogRule(
        texts=(
            "pass this dataset to ClusterCoordinator.create_per_worker_dataset",
            "module 'keras.utils' has no attribute 'experimental'",  # its DatasetCreator
        ),
        category="command",
        summary="calls model.fit of Keras 3 with ParameterServerStrategy, which Keras 3 does not support",
        resolution=f"model.fit of Keras 3 does not support ParameterServerStrategy; write the loop, or {_LEGACY_KERAS}",
    ),
    LogRule(
        texts=("is not available with Keras 3",),
        category="command",
        summary="uses tf.layers, which Keras 3 does not have",
        resolution=f"Keras 3 has no tf.layers: {_LEGACY_KERAS}",
    ),
    LogRule(
        texts=("No module named 'tf_keras'", "requires `tf_keras` package", "`tf_keras` package to be installed"),
        category="command",
        summary="needs the package tf_keras",
        resolution="TF_USE_LEGACY_KERAS=1 needs tf_keras where the container runs: pip install tf_keras (with "
        "tensorflow-cpu: pip install --no-deps tf_keras)",
    ),
    LogRule(
        texts=("TensorBoard is not installed", "No module named 'tensorboard'"),
        category="command",
        summary="writes summaries, and TensorBoard is not installed",
        resolution="install it where the container runs: pip install tensorboard",
        ends=False,
    ),
    LogRule(
        texts=("ModuleNotFoundError",),
        category="command",
        summary="lacks a Python module",
        resolution="install it where the container runs (on this machine: with the Python of tf-dist)",
    ),
    LogRule(
        texts=("EOFError: EOF when reading a line",),
        category="command",
        summary="reads from the keyboard, which replicas do not have",
        resolution="replicas have no input: give the value as an argument (after --) or as a variable (--env)",
    ),
    LogRule(
        texts=("Temporary failure in name resolution", "Network is unreachable"),
        category="configuration",
        summary="cannot reach another machine",
        resolution=(
            "on this machine, pods cannot reach other networks without slirp4netns: install it, or use "
            "tf-dist run --network shared; on a cluster, check DNS and NetworkPolicies"
        ),
        ends=False,
    ),
    LogRule(
        # The carriage return in the messages of env, bash, dash and the embedded kubelet.
        texts=(
            "\\r': No such file",
            "\\r\u2019: No such file",
            "\\r': command not found",
            "\r: not found",
            "\r: bad interpreter",
            "^M: bad interpreter",
            "\\r' (in its first line)",
        ),
        category="command",
        summary="runs a script with Windows line ends",
        resolution="the script has Windows line ends (CRLF): sed -i 's/\\r$//' FILE",
    ),
    LogRule(
        texts=("Could not find cuda drivers", "failed call to cuInit", "Cannot dlopen some GPU libraries"),
        category="configuration",
        summary="requests a GPU, but TensorFlow finds none",
        resolution=(
            "check that the image has tensorflow[and-cuda] (tensorflow-cpu sees no GPU), and that its CUDA "
            "matches the driver of the node (nvidia-smi)"
        ),
        ends=False,
        gpus=Gpus.ASKED,
    ),
    LogRule(
        texts=("CUDA_ERROR_NO_DEVICE",),
        category="configuration",
        summary="sees no GPU, because it requests none",
        resolution='request one: resources.limits "nvidia.com/gpu": 1',
        ends=False,
        gpus=Gpus.NOT_ASKED,
    ),
)


def known_failure(lines: Sequence[str]) -> LogRule | None:
    """The first rule that matches the reason in the log of a failed program.

    A rule for errors that do not end a program matches only an exception or the last line.
    """
    reasons = failure_reasons(lines)
    for rule in LOG_RULES:
        text = f"{reasons.last}\n{reasons.others}" if rule.ends else reasons.last
        if any(one in text for one in rule.texts):
            return rule
    return None


def known_warnings(lines: Sequence[str], gpus: Gpus) -> Iterator[LogRule]:
    """The rules that match lines of a running program, among the rules for errors that do not end a program."""
    text = "\n".join(lines)
    for rule in LOG_RULES:
        if not rule.ends and rule.gpus in (Gpus.ANY, gpus) and any(one in text for one in rule.texts):
            yield rule
