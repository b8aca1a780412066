"""Metrics in log lines: which text is a metric, and which replica's metrics count for the job."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_dist.core.diagnostics.metrics_parser import MOST_NAMES, Progress, combine_progress


@pytest.mark.parametrize(
    ("line", "metrics"),
    [
        ("step=120 loss=0.3121 accuracy=0.97", {"step": 120, "loss": 0.3121, "accuracy": 0.97}),
        ("loss = 1e-3, acc=.5;x=-2", {"loss": 0.001, "acc": 0.5, "x": -2}),
        ("Validation-accuracy=0.9 train|loss=+3.", {"Validation-accuracy": 0.9, "train|loss": 3}),
        ("\x1b[1mloss\x1b[0m=\x1b[31m0.5\x1b[0m", {"loss": 0.5}),
        ("loss=0.5.", {"loss": 0.5}),
        ("accuracy=95%", {"accuracy": 95}),
        ("2027-01-15T08:00:00Z loss=0.5", {"loss": 0.5}),
        ("address=10.0.0.1:2222", {}),
        ("port=2222:80", {}),
        ("took=3s", {}),
        ("version=1.2.3", {}),
        ("name=worker", {}),
        ("a.b=4", {}),
        ("=4", {}),
        ("step 4", {}),
        ("", {}),
        ("step=10: loss=0.5", {"step": 10, "loss": 0.5}),
        ("train/loss=0.4 val/loss = 0.5 val/acc@=1", {"train/loss": 0.4, "val/loss": 0.5}),
        ("epoch 1 (loss=0.5, acc=0.3)", {"loss": 0.5, "acc": 0.3}),
        ("2 worker(s): loss=0.5", {"loss": 0.5}),
        ("epoch=3/10 step=5/100", {"epoch": 3, "step": 5}),
        ("[epoch=1] {loss=0.5}", {"epoch": 1, "loss": 0.5}),
        ("loss=0.5,acc=0.9;lr=1e-4|f1=0.3", {"loss": 0.5, "acc": 0.9, "lr": 1e-4}),
        ("loss=np.float32(0.25) acc=float(1)", {"loss": 0.25, "acc": 1}),
        ("LOSS=0.5 VAL_ACC=0.9 EPOCH=2 AUC=0.8", {"LOSS": 0.5, "VAL_ACC": 0.9, "EPOCH": 2, "AUC": 0.8}),
        (" 50%|#####  | 5/10 [00:02<00:02,  2.0it/s, loss=0.51, acc=0.9]", {"loss": 0.51, "acc": 0.9}),
        ("5/10 [00:02]: loss=0.9\r6/10 [00:03]: loss=0.7\r", {"loss": 0.7}),
        ("I1127 12:00:00.123456 140 train.py:44] step=5 loss=0.3", {"step": 5, "loss": 0.3}),
        ("INFO:root:step=5 loss=0.3", {"step": 5, "loss": 0.3}),
        ("2026-11-27 12:00:00,123 - train - INFO - loss=0.5", {"loss": 0.5}),
        ("2026-11-27 12:00:00.1 | step=5 | min=0.1 s=3", {"step": 5, "min": 0.1, "s": 3}),
        ('time="2026-11-27T12:00:00Z" level=info msg="trained" loss=0.5', {"loss": 0.5}),
        ('{"severity": "INFO", "message": "step=3 loss=0.5"}', {"step": 3, "loss": 0.5}),
        ("throughput=1234.5 images/sec", {"throughput": 1234.5}),
    ],
)
def test_reads_name_value_pairs(line: str, metrics: dict[str, float]) -> None:
    assert Progress().after(line).metrics == metrics


_BAR = "\x1b[1m7/7\x1b[0m \x1b[32m━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m1s\x1b[0m 38ms/step"


@pytest.mark.parametrize(
    ("line", "metrics"),
    [
        # Keras 3
        (f"\r{_BAR} - accuracy: 0.4020 - loss: 0.7257", {"accuracy": 0.402, "loss": 0.7257}),
        (
            f"{_BAR} - auc: 0.4 - loss: 0.7 - val_auc: 0.5 - val_loss: 0.71 - learning_rate: 1.0000e-04",
            {"auc": 0.4, "loss": 0.7, "val_auc": 0.5, "val_loss": 0.71, "learning_rate": 1e-4},
        ),
        (f"{_BAR} - loss: 9.0" + "\b" * 80 + f"\r{_BAR} - loss: 0.5 ", {"loss": 0.5}),
        (f"{_BAR} - loss: nan - acc: inf"[:-11], {"loss": math.nan}),
        ("     3/Unknown \x1b[1m1s\x1b[0m 20ms/step - loss: 0.7", {"loss": 0.7}),
        ("7/7 - 0s - 14ms/step - accuracy: 0.4265 - loss: 0.7222", {"accuracy": 0.4265, "loss": 0.7222}),
        (f"{_BAR}", {}),
        # Keras 2, of TensorFlow 1 and 2
        (" 1/7 [===>..........] - ETA: 3s - loss: 0.70 - accuracy: 0.31", {"loss": 0.7, "accuracy": 0.31}),
        ("32/60000 [....] - ETA: 1:02:03 - loss: 2.3", {"loss": 2.3}),
        ("7/7 [======] - 1s 38ms/step - loss: 0.72 - lr: 0.0010", {"loss": 0.72, "lr": 0.001}),
        ("60000/60000 [====] - 3s 50us/sample - loss: 0.2 - acc: 0.9", {"loss": 0.2, "acc": 0.9}),
        ("7/7 - 0s - loss: 0.72 - accuracy: 0.43 - 81ms/epoch - 12ms/step", {"loss": 0.72, "accuracy": 0.43}),
        (" - 3s - loss: 0.2 - val_loss: 0.3", {"loss": 0.2, "val_loss": 0.3}),
        ("Epoch 3/10", {"epoch": 3}),
        ("Epoch 3 of 10 is a long one", {}),
        ("Epoch 3: val_loss improved from 0.31 to 0.29, saving model to /m/3.keras", {}),
        ("Epoch 3: ReduceLROnPlateau reducing learning rate to 0.0001.", {}),
        # the history and the logs of an epoch, as they are printed
        ("{'loss': [0.9, 0.5], 'val_loss': [0.8, 0.6]}", {"loss": 0.5, "val_loss": 0.6}),
        ("history: {'loss': [0.9], 'accuracy': [np.float64(0.7)]}", {"loss": 0.9, "accuracy": 0.7}),
        ("epoch 3 {'loss': 0.5, 'val/accuracy': 0.25}", {"loss": 0.5, "val/accuracy": 0.25}),
        ('{"step": 3, "loss": 1e-3}', {"step": 3, "loss": 0.001}),
        ("{'loss': " + str([0.5] * 2000) + "}", {"loss": 0.5}),
        ("{'batch_size': 32, 'epochs': 3}", {}),
        ("{'loss': 'mse', 'lr': 0.1}", {}),
        ('{"task": {"type": "worker", "index": 0}, "loss": 1}', {}),
        # estimators
        ("INFO:tensorflow:loss = 2.3, step = 100 (3.2 sec)", {"loss": 2.3, "step": 100}),
        (
            "INFO:tensorflow:Saving dict for global step 100: accuracy = 0.9, global_step = 100, loss = 0.3",
            {"accuracy": 0.9, "global_step": 100, "loss": 0.3},
        ),
        ("INFO:tensorflow:global_step/sec: 123.4", {"global_step/sec": 123.4}),
        ("INFO:tensorflow:Loss for final step: 0.31.", {"loss": 0.31}),
        ("I1127 12:00:00.123456 140 basic_session_run_hooks.py:262] loss = 2.3, step = 0", {"loss": 2.3, "step": 0}),
        ("INFO:tensorflow:Saving checkpoints for 100 into /tmp/model.ckpt.", {}),
    ],
)
def test_reads_output_of_keras_and_estimators(line: str, metrics: dict[str, float]) -> None:
    assert dict(Progress().after(line).metrics) == pytest.approx(metrics, nan_ok=True)


@pytest.mark.parametrize(
    ("line", "metrics"),
    [
        # Output of the tutorials of TensorFlow and Keras.
        ("Test accuracy: 0.9799000024795532", {"test_accuracy": 0.9799000024795532}),
        ("Test loss: 0.0512", {"test_loss": 0.0512}),
        (
            "Epoch: 1, accuracy: 0.825670, train_loss: 0.561231.",
            {"epoch": 1, "accuracy": 0.82567, "train_loss": 0.561231},
        ),
        (
            "Epoch 1, Loss: 0.13, Accuracy: 95.9%, Test Loss: 0.06, Test Accuracy: 97.9%",
            {"loss": 0.13, "accuracy": 95.9, "test_loss": 0.06, "test_accuracy": 97.9},
        ),
        ("Epoch 2 Training loss: 0.4 Validation Acc: 0.9", {"training_loss": 0.4, "validation_acc": 0.9}),
        ("Validation acc: 0.8732", {"validation_acc": 0.8732}),
        ("step: 100 | loss: 1.5e-3 | lr: 1e-4", {"step": 100, "loss": 0.0015, "lr": 0.0001}),
        ("[step 100] loss: 0.5", {"loss": 0.5}),
        ("INFO:root:loss: 0.5", {"loss": 0.5}),
        ("2026-11-27 12:00:00,123 - train - INFO - val_loss: 0.5", {"val_loss": 0.5}),
        ("I1127 12:00:00.123456 140 train.py:44] eval loss: nan", {"eval_loss": math.nan}),
        ("the mean absolute error: 0.25", {"mean_absolute_error": 0.25}),
        ("best AUC: 0.9 (epoch 3)", {"best_auc": 0.9}),
        ("global step: 100", {"global_step": 100}),
        ("accuracy: \x1b[32m0.9\x1b[0m", {"accuracy": 0.9}),
        ("loss: 0.5\taccuracy: 0.9", {"loss": 0.5, "accuracy": 0.9}),
        ("loss: 0.5 lr=0.1", {"loss": 0.5, "lr": 0.1}),
        ("Learning rate: 1e-3, val/F1 score: 0.5", {"learning_rate": 0.001, "val_f1_score": 0.5}),
        ("accuracy: tf.Tensor(0.9, shape=(), dtype=float32)", {}),
        # Names of measures without a measurement.
        ("Error: 404", {}),
        ("AssertionError: 3", {}),
        ("Training acc over epoch: 0.84", {}),
        ("loss: mse", {}),
        ("loss: 3 files", {}),
        ("loss: 0.5 seconds", {}),
        ("loss: 12:30:05", {}),
        ("lossy: 3", {}),
        ("gloss: 3", {}),
        ("http://loss:8080", {}),
        ("loss:8080/metrics", {}),
        ("  'loss': 3", {}),
        ("self.loss: 3", {}),
        ("def step(loss: 3):", {}),
        ("I0000 00:00:17957.5 23 op.cc:213] error: 0.5", {}),
        ("Batch size: 32", {}),
        ("Frame rate: 25", {}),
        ("return: 3", {}),
    ],
)
def test_reads_measures_with_a_colon(line: str, metrics: dict[str, float]) -> None:
    assert dict(Progress().after(line).metrics) == pytest.approx(metrics, nan_ok=True)


@pytest.mark.parametrize(
    "line",
    [
        "I0000 00:00:17957.5  23 generator_dataset_op.cc:213] Memory patch applied: M_TRIM_THRESHOLD=128 kb was set.",
        "2026-11-27 12:00:00.123: W tensorflow/core/framework/op.cc:44] x=5 y = 3",
        "E1127 12:00:00.123456789 12 chttp2_transport.cc:1111] grpc_status=14 keepalive=2",
        "I1127 12:00:00.000000 1 leaderelection.go:245] attempt=3",
        "host:17:42 [0] NCCL INFO comm 0x7f rank 0 nranks = 2 channels=4",
        "onednn_verbose,primitive,exec,cpu,matmul,time=5",
        "INFO:tensorflow:Collective all_reduce tensors: 1 all_reduces, num_devices = 1, group_size = 2, num_packs = 1",
        "INFO:tensorflow:MultiWorkerMirroredStrategy with cluster_spec = {}, task_type = 'worker', task_id = 0",
        "INFO:tensorflow:Using config: {'_model_dir': '/tmp', '_save_summary_steps': 100}",
        "M_TRIM_THRESHOLD=128 kb",
        "MALLOC_ARENA_MAX=2 OMP_NUM_THREADS=4 TF_CPP_MIN_LOG_LEVEL=2",
        "WORLD_SIZE=2",
        "SHLVL=1",
        "EPOCHS=3",
        "export epochs=3",
        "+ epochs=3",
        "++ lr=0.1 python train.py --epochs=3",
        "in use bytes     =       74096",
        "max mmap regions =          0",
        "tcmalloc: large alloc 1073741824 bytes == 0x5621",
        "model.fit(x, y, epochs=3, batch_size=32)",
        "    session = connect(host, timeout=5)",
        "    timeout=5,",
        "    epochs=3,",
        "    validation_steps=3)",
        "----> 2     steps=3",
        "│ ❱ 12 │   steps=3                       │",
        "def train(epochs=3, lr=0.1):",
        "optimizer = Adam(learning_rate=0.001, beta_1=0.9)",
        "steps = 3  # per epoch",
        "Namespace(batch_size=64, lr=0.1)",
        "<tf.Tensor: shape=(), dtype=float32, numpy=0.5>",
        "tf.Tensor(0.5, shape=(), dtype=float32, device=0)",
        "x = a*3 y=3*4",
        "time=2026-11-27T12:00:00Z",
        "date=11/27/2026",
        "time=12:30:05",
        "time=1795778742.58 timestamp=1795778742",
        "started=2026-11-27 12:00:00",
        "took=3.2 s",
        "elapsed = 12 seconds, memory=12 GiB",
        "step time=35 ms",
        "latency = 3 ms/step",
        "listening on port=2222",
        "grpc_port=2222 pid=17",
        "timeout=5",
        "version=2.10",
        "tensorflow==2.15 numpy>=1.26",
        "GET http://bucket/data?step=5&loss=3",
        "/data/epoch=3/part",
        "gs://bucket/a=5",
        "python train.py --epochs=3 -lr=0.1",
        "ids=1,2,3 range=1-5 size=0x10 mode=12x12",
        "flags.lr=0.1",
        "KMP_AFFINITY=granularity=3",
    ],
)
def test_reads_no_metrics_from_libraries_source_dates_and_units(line: str) -> None:
    assert Progress().after(line).metrics == {}


_TRACEBACKS = {
    "python": """Traceback (most recent call last):
  File "/app/train.py", line 23, in <module>
    epochs=3
    ^^^^^^^^
  File "/app/keras.py", line 122, in fit
    steps = 5
ValueError: step=7 is not possible
  expected=3
loss=0.5""",
    "chained": """Traceback (most recent call last):
  File "/app/train.py", line 23, in <module>
    epochs=3
KeyError: 'a=3'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/app/train.py", line 25, in <module>
    x = 3
train.errors.JobFailed: x=3
loss=0.5""",
    "logging": """ERROR:root:failed
Stack (most recent call last):
  File "/app/train.py", line 23, in <module>
    epochs=3
loss: x=3
loss=0.5""",
    "warning": """/app/keras.py:74: UserWarning: shuffle=1 will be ignored
  workers=3
loss=0.5""",
    "thread": """  File "/app/train.py", line 23, in run
    epochs=3
RuntimeError
loss=0.5""",
    "tensorflow": """Detected at node 'a' defined at (most recent call last):
    File "/app/train.py", line 9, in <module>
      epochs=3
Node: 'a=3'
loss=0.5""",
}


@pytest.mark.parametrize("name", _TRACEBACKS)
def test_ignores_traceback_and_reads_following_lines(name: str) -> None:
    progress = Progress()
    for line in _TRACEBACKS[name].splitlines():
        progress = progress.after(line)
    assert progress.metrics == {"loss": 0.5}


def test_many_lines_of_traceback_without_head_are_ignored() -> None:
    lines = ["plain text", '  File "train.py", line 3, in main', "step=5 loss=0.25", *["plain text"] * 60]
    assert Progress().after_all(lines).metrics == {}


_FORMS = (
    "plain text",
    "step={n} loss=0.{n:04}",
    "[{n}] loss={n}.5e-05 time=17{n:08}",
    "gpu{n}: gpu{n}_util={n}%",
    "{n}/100 - accuracy: 0.{n:04} - loss: 1.{n:04}",
    "saved checkpoint=/model/ckpt-{n}",
    "tf-dist-result: {n}",
    "address=10.0.0.{n} took={n}s",
    "{{'loss': 0.{n:04}, 'step': {n}}}",
    "Traceback (most recent call last):",
    '  File "train.py", line {n}, in main',
    "    epochs={n}",
    "train.py:{n}: UserWarning: slow",
)


@given(st.lists(st.tuples(st.sampled_from(_FORMS), st.integers(0, 60)), max_size=20), st.integers(1, 12))
def test_after_all_equals_line_by_line(drawn: list[tuple[str, int]], times: int) -> None:
    lines = [form.format(n=n + time) for time in range(times) for form, n in drawn]
    progress = Progress({"loss": 9.0})
    for line in lines:
        progress = progress.after(line)
    found = Progress({"loss": 9.0}).after_all(lines)
    assert (found, list(found.metrics)) == (progress, list(progress.metrics))


def test_keeps_at_most_100_names() -> None:
    progress = Progress()
    for number in range(16_000):
        progress = progress.after(f"loss={number} norm{number}=1")
    assert len(progress.metrics) == MOST_NAMES == 100
    assert progress.metrics["loss"] == 15_999
    others = [Progress({f"{replica}-{name}": 1.0 for name in range(100)}) for replica in range(5)]
    combined = combine_progress([progress, *others]).metrics
    assert combined == progress.metrics, "those of the leader come first"


@pytest.mark.parametrize("form", ["loss={}", "loss: {}", '{{"loss": {}}}', "7/7 - 0s - loss: {}"])
@pytest.mark.parametrize("value", ["nan", "NaN", "-nan", "NAN", "inf", "-inf", "INF", "Infinity", "-Infinity"])  # JSON
def test_reads_nan_and_infinite_losses(form: str, value: str) -> None:
    found = Progress({"loss": 0.5}).after(form.format(value)).metrics
    assert dict(found) == pytest.approx({"loss": float(value)}, nan_ok=True)


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("step=5 checkpoint=/tmp/m/ckpt-5", "/tmp/m/ckpt-5"),
        ('checkpoint="/tmp/my model/5", done', "/tmp/my model/5"),
        ("checkpoint=gs://bucket/a=b/5", "gs://bucket/a=b/5"),
        ("checkpoint=7", "7"),
        ("checkpoint=None", ""),
        ("Epoch 3: saving model to /m/3.keras", "/m/3.keras"),
        ("Epoch 3: val_loss improved from inf to 0.25, saving model to /m/best.keras", "/m/best.keras"),
        ("INFO:tensorflow:Saving checkpoints for 100 into /m/model.ckpt.", "/m/model.ckpt"),
        ("INFO:tensorflow:Saving checkpoints for 100 into /m/model.ckpt", "/m/model.ckpt"),
        ("Saved checkpoint for step 10: ./tf_ckpts/ckpt-1", "./tf_ckpts/ckpt-1"),
        ("Saving checkpoint for epoch 5 at ./checkpoints/ckpt-1", "./checkpoints/ckpt-1"),
        ("saving money to the bank", ""),
        ("last_checkpoint=/x", ""),
    ],
)
def test_reads_checkpoint(line: str, path: str) -> None:
    found = Progress().after(line)
    assert (found.checkpoint, found.saves) == (path, bool(path))


def test_counts_checkpoints_with_same_path() -> None:
    lines = ["Epoch 1: saving model to best.keras", "loss=0.5", "Epoch 2: saving model to best.keras"]
    assert Progress().after_all(lines).saves == 2
    assert Progress().after_all([f"Saving checkpoints for {n} into m" for n in range(1000)]).saves == 2


def test_latest_value_replaces_earlier_value() -> None:
    progress = Progress().after("step=1 loss=0.9").after("step=2 checkpoint=/a").after("checkpoint=/b")
    assert progress == Progress({"step": 2, "loss": 0.9}, "/b")


def test_line_without_metrics_changes_nothing() -> None:
    progress = Progress({"step": 1})
    assert progress.after("hello = world") is progress


def test_metrics_of_leader_take_precedence() -> None:
    parts = [Progress({"accuracy": 0.9}), Progress({"accuracy": 0.5, "loss": 1.0}, "/w1"), Progress({}, "/w2")]
    assert combine_progress(parts) == Progress({"accuracy": 0.9, "loss": 1.0}, "/w1")


def test_ignores_line_of_a_megabyte() -> None:
    assert Progress().after("a" * (1 << 20) + "=1") == Progress()
    assert Progress().after("=" * (1 << 20)) == Progress()


def keras_lines(epochs: int, *, batches: int = 10, first: int = 1) -> list[str]:
    lines = []
    for epoch in range(first, epochs + 1):
        lines.append(f"Epoch {epoch}/{epochs}")
        lines += [
            f"{done}/{batches} {'━' * done} 1s 38ms/step - loss: 0.{epoch}{done}" for done in range(1, batches + 1)
        ]
    return lines


def after_each(lines: list[str]) -> Progress:
    progress = Progress()
    for line in lines:
        progress = progress.after(line)
    return progress


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    ("lines", "epoch", "step"),
    [
        (keras_lines(3), 3, 30),
        (keras_lines(12)[:-4], 12, 117 - 1),
        ([*keras_lines(2), "Epoch 3/10"], 3, 20),
        ([*keras_lines(3), "4/4 ━━━━ 0s 3ms/step - loss: 0.5"], 3, 30),  # of model.evaluate
        ([*keras_lines(3), *keras_lines(9, first=5)[:11]], 5, 50),  # restarted, from a checkpoint
        ([*keras_lines(3), *keras_lines(3)[:5]], 1, 4),  # restarted, from the beginning
        (["step=500 loss=0.5", *keras_lines(3)], 3, 500),
    ],
)
def test_reads_epoch_and_step_of_keras(lines: list[str], epoch: int, step: int, together: bool) -> None:
    progress = Progress().after_all(lines) if together else after_each(lines)
    assert (progress.metrics["epoch"], progress.metrics["step"]) == (epoch, step)
    assert progress.keras is not None


def test_epochs_of_unknown_length_have_no_step() -> None:
    progress = after_each(["Epoch 2/5", "7/Unknown 1s 38ms/step - loss: 0.5"])
    assert dict(progress.metrics) == {"epoch": 2, "loss": 0.5}
    assert progress.keras is not None
    assert progress.keras.epochs == 5
