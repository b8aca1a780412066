"""Whether isolation works here: tried for real, once, with a pod that is thrown away."""

from __future__ import annotations

import os
import shutil
import socket
import sys

from tf_dist.cluster.node.runtime.loop import Config, Loop
from tf_dist.cluster.node.runtime.runner import Runner


def rehearse(config: Config, loop: Loop, runner: Runner) -> None:
    """Run a pod with volumes where no folder is; OSError with what the system refused."""
    folder = os.path.join(config.folder, "rehearsal")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    last = socket.inet_ntoa(bytes((*socket.inet_aton(config.bridge)[:2], 255, 254)))
    runner.create("", ip=last, hostname="rehearsal", staging=f"{folder}/staging")
    mounts = [{"source": folder, "target": target} for target in (f"{folder}/a/b", "/tf-dist-rehearsal")]
    argv = [sys.executable, "-I", "-S", "-c", ""]
    runner.run("", "try", 0, 0, f"{folder}/log", argv=argv, env={}, cwd="/", mounts=mounts)
    pod = runner.pods[""]
    while pod.state != "broken" and not any(item.state == "exited" for item in pod.containers.values()):
        loop.step(1.0)
    runner.close()
    shutil.rmtree(folder, ignore_errors=True)
    for message in (pod.message, *(item.message for item in pod.containers.values())):
        if message:
            raise OSError(message)
