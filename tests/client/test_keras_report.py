"""``tf_dist.keras.Report`` prints lines that tf-dist reads, and reports a missing TensorFlow."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from tf_dist.core.diagnostics.metrics_parser import Progress

TRAINING = """
import tensorflow as tf
from tf_dist.keras import Report
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse", metrics=["mae"])
x = tf.ones((64, 4))
print("begin")
model.fit(x, tf.ones((64, 1)), epochs=2, verbose=0, callbacks=[Report({arguments})])
"""


def printed(program: str, **env: str) -> list[str]:
    found = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | env, capture_output=True, text=True, timeout=240
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.partition("begin\n")[2].splitlines()


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is missing: pip install '.[tensorflow]'"
)
@pytest.mark.parametrize("legacy", ["", "1"], ids=["keras 3", "keras 2"])
def test_prints_epoch_step_and_metrics(legacy: str) -> None:
    lines = printed(TRAINING.format(arguments="checkpoint='m-{epoch:02d}.keras'"), TF_USE_LEGACY_KERAS=legacy)
    assert [line.split()[:2] for line in lines] == [["epoch=1", "step=2"], ["epoch=2", "step=4"]]
    progress = Progress().after_all(lines)
    assert {"epoch", "step", "loss", "mae"} == {*progress.metrics}
    assert progress.checkpoint == "m-02.keras"
    often = printed(TRAINING.format(arguments="every=1"), TF_USE_LEGACY_KERAS=legacy)
    assert [line.split()[1] for line in often] == ["step=1", "step=2", "step=2", "step=3", "step=4", "step=4"]


def test_import_without_tensorflow_is_explained() -> None:
    program = "import sys; sys.modules['tensorflow'] = None; import tf_dist.keras"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1].startswith("ImportError: tf_dist.keras needs TensorFlow (")
