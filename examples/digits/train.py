"""Train a classifier of handwritten digits with TensorFlow parameter servers.

The replicas learn who they are from TF_CONFIG. The parameter servers (ps) hold the weights. Each worker repeats on its
own, without waiting for the others: pull the weights, compute the gradients of one batch, push them (asynchronous
training). One worker is the chief: it also sets the first weights, saves checkpoints and exports the model. Without
TF_CONFIG one process does everything.

To train a model of your own, replace `load_data` and `build_model`: the rest does not know what is being learned.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# The main thread is mostly inside TensorFlow's C++ code, where Python runs no signal handler. So all threads block the
# stop signals (they inherit that, hence before the imports, which start threads), and one only waits for them.
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}
STOP_GRACE = 3.0  # seconds to finish the step and to save, before the process ends in any case
stop = threading.Event()
stop_code = 0


def watch_signals() -> None:
    """Ask the main thread to stop; end the process if it does not."""
    global stop_code
    stop_code = 128 + signal.sigwait(STOP_SIGNALS)
    stop.set()
    time.sleep(STOP_GRACE)
    os._exit(stop_code)


signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
threading.Thread(target=watch_signals, daemon=True).start()

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # announces itself on stderr at every log level

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402
from sklearn.model_selection import train_test_split  # noqa: E402

v1 = tf.compat.v1  # its sessions let workers come and go; tf.distribute wants one coordinator that outlives them all
GAVE_UP = 138  # to a TFJob an exit code from 128 up means "worth a restart"; 138 is the one left to programs
CALL_TIMEOUT = 10.0  # seconds for one call to the parameter servers: a frozen one must not freeze its workers
# What a call raises when a parameter server is away, has come back empty, or does not know this session any more.
PS_TROUBLE = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.UnavailableError,
)


@dataclass(frozen=True)
class Task:
    """Who this process is, and where the others are: `{"ps": {0: "host:port"}, "worker": ...}`."""

    cluster: dict[str, dict[int, str]]
    type: str = "worker"
    index: int = 0

    @classmethod
    def from_environment(cls) -> "Task":
        """Read TF_CONFIG: all hosts of a role in a list or (sparse) only this worker in a map, `{"1": "host:port"}`."""
        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        if not config:
            return cls({})
        role, index = config["task"]["type"], int(config["task"]["index"])
        cluster = {}
        for name, hosts in config["cluster"].items():
            if isinstance(hosts, list):
                # A sparse ps is listed alone, at any index.
                hosts = {index: hosts[0]} if name == role and len(hosts) == 1 else dict(enumerate(hosts))
            if hosts:
                cluster[name] = {int(i): host for i, host in hosts.items()}
        return cls(cluster, role, index)

    @property
    def is_chief(self) -> bool:
        """Whether this is the chief (of old: master) or, in a cluster that has none, worker 0."""
        if "chief" in self.cluster or "master" in self.cluster:
            return self.type in ("chief", "master")
        return self.type == "worker" and self.index == 0

    def start_server(self) -> Any:
        """Start TensorFlow's gRPC server, which works in threads of its own."""
        # Replicas may share a machine: few threads, and no GPU, of which the server would take all memory for nothing.
        config = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2, device_count={"GPU": 0})
        return tf.distribute.Server(tf.train.ClusterSpec(self.cluster), self.type, self.index, config=config)


class Session(v1.Session):
    """A session that raises errors as they come.

    The original searches their text for names of operations. Some texts hold all values sent (TensorFlow now and then
    believes that it "received the same request twice"); the search then takes very long and blocks every thread, also
    the one that waits for signals.
    """

    def _do_call(self, fn: Callable[..., Any], *args: Any) -> Any:
        return fn(*args)


class ParameterServer:
    """The variables that one parameter server keeps; for all workers an equal name means the same variable.

    A worker is a plain client: all operations run on the server, and gradients come from outside. So a server never
    calls a worker and need not know where they are (in a sparse cluster it does not); a worker that is late, dead or
    done disturbs no other.
    """

    def __init__(self, address: str, index: int, shapes: list[tuple[int, ...]], learning_rate: float) -> None:
        with tf.Graph().as_default() as graph:
            new_step = v1.placeholder(tf.int64, [])
            values = [v1.placeholder(tf.float32, shape) for shape in shapes]  # weights to load, or gradients to apply
            step = tf.Variable(new_step, name="step")
            weights = [tf.Variable(value, name=f"weight_{i}") for i, value in enumerate(values)]
            loaded = [tf.raw_ops.VarIsInitializedOp(resource=variable.handle) for variable in [step, *weights]]
            pulled = [variable.read_value() for variable in [step, *weights]]
            updates = [w.assign_sub(learning_rate * g).op for w, g in zip(weights, values, strict=True)]
            next_step = step.assign_add(1).read_value()
        config = v1.ConfigProto(operation_timeout_in_ms=int(CALL_TIMEOUT * 1000), intra_op_parallelism_threads=1)
        if address:
            # Unfiltered, a session waits for every process of the cluster, also for one that has finished.
            config.device_filters.append(f"/job:ps/task:{index}")
        # Without an address the variables are in this process.
        session = Session(f"grpc://{address}" if address else "", graph, config)
        self._loaded = session.make_callable(loaded)
        self._load_weights = session.make_callable([weight.initializer for weight in weights], values)
        self._load_step = session.make_callable(step.initializer, [new_step])
        self._pull = session.make_callable(pulled)
        self._push = session.make_callable([next_step, updates], values)

    def is_loaded(self) -> bool:
        """Whether all variables have values: not at first, and not after a restart of the server."""
        return all(self._loaded())

    def load(self, step: int, weights: list[np.ndarray]) -> None:
        """Set all variables, the step last: no other worker starts before it is there."""
        self._load_weights(*weights)
        self._load_step(step)

    def pull(self) -> tuple[int, list[np.ndarray]]:
        """Return step and weights."""
        step, *weights = self._pull()
        return int(step), weights

    def push(self, gradients: list[np.ndarray]) -> int:
        """Apply gradients; return the new step."""
        return int(self._push(*gradients)[0])


class ParameterStore:
    """All parameter servers: of n, each keeps every n-th weight; the first one counts the global step."""

    def __init__(self, addresses: dict[int, str], weights: list[np.ndarray], learning_rate: float) -> None:
        self.n = len(addresses)
        self.servers = [
            ParameterServer(addresses[index], index, [w.shape for w in weights[i :: self.n]], learning_rate)
            for i, index in enumerate(sorted(addresses))
        ]

    def is_loaded(self) -> bool:
        """Whether training can go on."""
        return all(server.is_loaded() for server in self.servers)

    def load(self, step: int, weights: list[np.ndarray]) -> None:
        """Set step and weights everywhere."""
        for i, server in enumerate(self.servers):
            server.load(step, weights[i :: self.n])

    def pull(self) -> tuple[int, list[np.ndarray]]:
        """Return the global step and all weights."""
        pulled = [server.pull() for server in self.servers]
        weights = [pulled[i % self.n][1][i // self.n] for i in range(sum(len(part) for _, part in pulled))]
        return pulled[0][0], weights

    def push(self, gradients: list[np.ndarray]) -> int:
        """Apply gradients; return the new global step."""
        steps = [server.push(gradients[i :: self.n]) for i, server in enumerate(self.servers)]
        return steps[0]


def load_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training images, held-out images, training labels, held-out labels; the split is the same everywhere."""
    digits = load_digits()  # 1797 grey images of 8 by 8, part of scikit-learn: no download
    images = (digits.images[..., np.newaxis] / 16).astype(np.float32)
    return train_test_split(images, digits.target, test_size=0.2, random_state=0, stratify=digits.target)


def build_model() -> tf.keras.Model:
    """Return the model to train."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(10),
        ]
    )


class Training:
    """What a worker does. Its model is a copy of the weights as they were when it last pulled them."""

    def __init__(self, task: Task, options: argparse.Namespace) -> None:
        self.task, self.options = task, options
        self.images, self.test_images, self.labels, self.test_labels = load_data()
        self.random = np.random.default_rng()  # not seeded: each worker, and each life of it, sees other batches
        self.model = build_model()
        self.step = self.saved_step = 0
        self.last_progress = time.monotonic()
        self.saved = tf.train.Checkpoint(model=self.model, step=tf.Variable(0, dtype=tf.int64))
        self.checkpoints = tf.train.CheckpointManager(self.saved, options.model_dir, 3, checkpoint_name="model.ckpt")
        if task.is_chief:
            os.makedirs(options.model_dir, exist_ok=True)  # better to fail now than at the first checkpoint
        self.restore()

    @property
    def done(self) -> bool:
        """Whether the workers together have made all steps."""
        return self.step >= self.options.steps

    def run(self) -> int:
        """Train until all steps are made or a signal comes; return the exit code."""
        if self.step:
            print(f"found a checkpoint of step {self.step}")
        while not self.done and not stop.is_set():
            try:
                self.train()
            except PS_TROUBLE as error:
                print(f"lost the parameter servers at step {self.step} ({type(error).__name__}), trying again")
                self.wait()
        if self.task.is_chief:
            self.save()
        if self.done and self.task.is_chief:
            self.model.export(f"{self.options.model_dir}/export", verbose=False)
            print(f"step={self.step} accuracy={self.accuracy():.4f} checkpoint={self.checkpoints.latest_checkpoint}")
        return 0 if self.done else stop_code

    def train(self) -> None:
        """Train as long as the parameter servers stay up: a connection that has lost one is of no more use."""
        store = ParameterStore(self.task.cluster.get("ps", {0: ""}), self.weights(), self.options.learning_rate)
        while not store.is_loaded():
            if self.task.is_chief:
                # On a fresh server these are initial weights or a checkpoint; on a restarted one, what was pulled last.
                store.load(self.step, self.weights())
                print(f"weights of step {self.step} loaded into the parameter servers")
                break
            self.wait()
            if self.done or stop.is_set():
                return
        while not self.done and not stop.is_set():
            self.train_step(store)
        self.pull(store)  # with the last updates of all

    def train_step(self, store: ParameterStore) -> None:
        """Learn from one batch."""
        self.pull(store)
        batch = self.random.choice(len(self.images), self.options.batch_size)
        loss, gradients = self.gradients(self.images[batch], self.labels[batch])
        before, self.step = self.step, store.push([gradient.numpy() for gradient in gradients])
        self.last_progress = time.monotonic()
        if self.crossed(self.options.log_every, before):
            print(f"step={self.step} loss={loss:.4f} accuracy={self.accuracy():.4f}")
        if self.task.is_chief and self.crossed(self.options.checkpoint_every, before):
            self.save()

    def crossed(self, every: int, before: int) -> bool:
        """Whether a multiple of `every` was reached; other workers push too, so the step may jump over it."""
        return self.step // every > before // every

    def pull(self, store: ParameterStore) -> None:
        """Refresh the copy."""
        self.step, weights = store.pull()
        for variable, value in zip(self.model.trainable_variables, weights, strict=True):
            variable.assign(value)

    def weights(self) -> list[np.ndarray]:
        """Return the copy."""
        return [variable.numpy() for variable in self.model.trainable_variables]

    @tf.function
    def gradients(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return loss and gradients of one batch."""
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self.model(images, training=True))
            loss = tf.reduce_mean(losses)
        return loss, tape.gradient(loss, self.model.trainable_variables)

    def accuracy(self) -> float:
        """Return the share of held-out images that are classified right."""
        return float(np.mean(np.argmax(self.model(self.test_images), axis=1) == self.test_labels))

    def restore(self) -> None:
        """Take step and weights from the newest checkpoint, if there is one that this process has not seen."""
        path = tf.train.latest_checkpoint(self.options.model_dir)
        if path and not path.endswith(f"-{self.saved_step}"):
            self.saved.restore(path).expect_partial()
            self.step = self.saved_step = int(self.saved.step.numpy())
            self.last_progress = time.monotonic()

    def save(self) -> None:
        """Write a checkpoint, unless there is one of this step."""
        if self.step > self.saved_step:
            self.saved.step.assign(self.step)
            self.checkpoints.save(checkpoint_number=self.step)
            self.saved_step = self.step

    def evaluate(self) -> int:
        """What an evaluator does: measure each checkpoint until the last one; return the exit code."""
        while not self.done and not stop.is_set():
            before = self.step
            self.wait()
            if self.step > before:
                print(f"step={self.step} accuracy={self.accuracy():.4f}")
        return 0 if self.done else stop_code

    def wait(self) -> None:
        """Sleep a little, but give up when nothing has moved for too long: no replica hangs for ever."""
        stop.wait(1.0)
        self.restore()  # the chief may be done and gone; then its last checkpoint says so
        if not self.done and time.monotonic() - self.last_progress > self.options.patience:
            raise TimeoutError(f"no progress for {self.options.patience:g} seconds at step {self.step}")


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a digit classifier with TensorFlow parameter servers.")
    parser.add_argument("--steps", type=int, default=4000, help="steps that all workers make together")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--model-dir", type=os.path.abspath, default="model", help="checkpoints and exported model")
    parser.add_argument("--log-every", type=int, default=100, help="steps between two lines of progress")
    parser.add_argument("--checkpoint-every", type=int, default=500, help="steps between two checkpoints")
    parser.add_argument("--patience", type=float, default=300, help="seconds without progress after which to give up")
    return parser.parse_args()


def main() -> int:
    """Do what TF_CONFIG asks of this process; return the exit code."""
    options, task = parse_options(), Task.from_environment()
    sys.stdout.reconfigure(line_buffering=True)  # progress is of use while it happens
    if task.type == "ps":
        server = task.start_server()
        print(f"parameter server {task.index} serves at {server.target}")
        stop.wait()  # not server.join(), which no signal can end
        return stop_code
    if "ps" not in task.cluster and sum(map(len, task.cluster.values())) > 1:
        sys.exit("TF_CONFIG has several replicas but no ps to share the weights")
    tf.config.threading.set_intra_op_parallelism_threads(1)  # replicas may share a machine
    tf.config.threading.set_inter_op_parallelism_threads(2)
    training = Training(task, options)
    try:
        return training.evaluate() if task.type == "evaluator" else training.run()
    except TimeoutError as error:
        print(error, file=sys.stderr)
        return GAVE_UP


if __name__ == "__main__":
    try:
        code = main()
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)  # an orderly exit waits for TensorFlow's threads, and these may wait for a peer that is gone
