"""Replaces examples/digits/train.py: the same options, lines and files, but without TensorFlow.

It serves to test everything around the training. The accuracy grows with the number of steps and the learning rate.
"""

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

EVERY = 100  # steps between two lines


def be_met(address: str) -> None:
    """Wait for worker 0, because its end ends the whole job."""
    print("step=0", flush=True)
    with socket.create_server(("", int(address.rpartition(":")[2]))) as server:
        server.accept()[0].close()


def meet(address: str) -> None:
    """Wait for another worker."""
    host, _, port = address.rpartition(":")
    while True:
        with suppress(OSError), socket.create_connection((host, int(port))):
            return
        time.sleep(0.02)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-dir", default="/tmp/tf-dist/digits/stand-in")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    options = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    config = json.loads(os.environ["TF_CONFIG"])
    task = config["task"]
    if task["type"] == "ps":
        stop.wait()
        return 128 + signal.SIGTERM
    _, *others = config["cluster"]["worker"]
    if task["index"] == 0:
        for other in others:
            meet(other)
    else:
        be_met(others[task["index"] - 1])
    learned = 0.0
    for step in range(EVERY, options.steps + EVERY, EVERY):
        if stop.wait(0.02):
            return 128 + signal.SIGTERM
        step = min(step, options.steps)
        learned = 1 - 1 / (1 + step * options.learning_rate)
        print(f"step={step} loss={1 - learned:.4f} accuracy={learned:.4f}", flush=True)
    if task["index"] == 0:
        checkpoint = Path(options.model_dir, f"model.ckpt-{options.steps}")
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.with_name(f"{checkpoint.name}.index").touch()
        print(f"accuracy={learned:.4f} checkpoint={checkpoint}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
