"""A Keras callback that prints the values that tf-dist reads: ``model.fit(…, callbacks=[tf_dist.keras.Report()])``.

This is the only module of tf_dist that needs TensorFlow. It works with Keras 3 and with Keras 2
(``TF_USE_LEGACY_KERAS=1``), because the callback uses the Keras of ``tf.keras``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    class _Callback:
        model: Any

else:
    try:
        from tensorflow.keras.callbacks import Callback as _Callback
    except ImportError as error:
        raise ImportError(
            f"tf_dist.keras needs TensorFlow ({error}): pip install tensorflow, or tensorflow-cpu without a GPU"
        ) from error

__all__ = ["Report"]


class Report(_Callback):
    """Prints ``epoch=3 step=300 loss=0.25 accuracy=0.91`` after each epoch.

    The lines do not depend on Keras' own progress bars, so ``model.fit(…, verbose=0)`` is possible. Each number has the
    name that Keras gives it.

    :param every: Also print a line after this many batches; 0: only after epochs. ParameterServerStrategy supports only
        epochs.
    :param checkpoint: The path that is printed as ``checkpoint=`` after each epoch, with Keras' placeholders
        (``model-{epoch:02d}.keras``). Use the path of a ``ModelCheckpoint`` that is listed before this callback.
    """

    def __init__(self, *, every: int = 0, checkpoint: str = "") -> None:
        super().__init__()
        self._every = every
        if every:  # ParameterServerStrategy rejects callbacks that have this method
            self.on_train_batch_end = self._after_batch
        self._checkpoint = checkpoint
        self._epoch = 0
        self._batches = 0

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """See Keras."""
        self._epoch = epoch + 1

    def _after_batch(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._batches += 1
        if self._batches % self._every == 0:
            self._print(logs or {})

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """See Keras."""
        self._print(logs or {}, self._checkpoint.format(epoch=epoch + 1, **(logs or {})))

    def _print(self, logs: Mapping[str, Any], checkpoint: str = "") -> None:
        # The optimizer also counts the batches before a restart.
        step = int(self.model.optimizer.iterations.numpy())
        words = [f"epoch={self._epoch}", f"step={step}"]
        words += [f"{name}={float(value):.6g}" for name, value in logs.items()]
        words += [f"checkpoint={checkpoint}"] if checkpoint else []
        print(*words, flush=True)  # noqa: T201
