"""A thousand triggers on one event loop, as a triggerer runs them: a process of ``benchmarks.airflow``.

Arguments: ``ours``, ``theirs`` or ``jobs``, a kubeconfig, how many, seconds to look on. Commands come as lines on
standard input, figures go as JSON lines to standard output.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import resource
import sys
import threading
import time
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any


class Stalls:
    """The longest time for which the event loop did not come round."""

    longest = 0.0

    async def watch(self) -> None:
        """Measure, until cancelled."""
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.01)
            self.longest = max(self.longest, time.perf_counter() - before - 0.01)


def memory() -> float:
    """MiB that this process holds at present."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def full_collection() -> float:
    """Seconds that a full garbage collection takes now, in which no thread goes on."""
    gc.collect()
    before = time.perf_counter()
    gc.collect()
    return time.perf_counter() - before


def ours(kubeconfig: str, number: int) -> Any:
    """A trigger for a job."""
    from tf_dist.airflow import TFJobTrigger

    access = {"kubernetes_conn_id": None, "config_file": kubeconfig}
    return TFJobTrigger(name=f"ours-{number}", namespace="default", access=access, drive=True)


def theirs(kubeconfig: str, number: int) -> Any:
    """The Kubernetes provider's, for a pod."""
    from airflow.providers.cncf.kubernetes.triggers.pod import KubernetesPodTrigger

    return KubernetesPodTrigger(
        pod_name=f"theirs-{number}",
        pod_namespace="default",
        trigger_start_time=datetime.now(UTC),
        base_container_name="base",
        config_dict=_for_their_client(kubeconfig),
        in_cluster=False,
    )


def jobs(kubeconfig: str, number: int) -> Any:
    """The Kubernetes provider's, for a Job."""
    import yaml

    file = Path(kubeconfig).with_name("their-kubeconfig")
    if not file.exists():
        file.write_text(yaml.safe_dump(_for_their_client(kubeconfig)))
        os.environ["KUBECONFIG"] = str(file)  # the only file that this trigger reads
    from airflow.providers.cncf.kubernetes.triggers.job import KubernetesJobTrigger

    return KubernetesJobTrigger(
        job_name=f"jobs-{number}",
        job_namespace="default",
        pod_names=[],
        pod_namespace="default",
        base_container_name="base",
        in_cluster=False,
        get_logs=False,
    )


def _for_their_client(kubeconfig: str) -> dict[str, Any]:
    import yaml

    config: dict[str, Any] = yaml.safe_load(Path(kubeconfig).read_text())
    # The token is in the URL, too, and this client takes one or the other.
    cluster = config["clusters"][0]["cluster"]
    cluster["server"] = re.sub(r"//.*@", "//", cluster["server"])
    return config


def listen(loop: asyncio.AbstractEventLoop, told: asyncio.Event) -> None:
    """Take the command, and end this process when who gave it has ended."""
    for _ in sys.stdin:
        loop.call_soon_threadsafe(told.set)
    os._exit(1)


async def main() -> None:
    """Run them, and say what that takes."""
    kind, kubeconfig, count, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    make = {"ours": ours, "theirs": theirs, "jobs": jobs}[kind]
    figures = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # logs are written there, and not read

    def tell(**values: object) -> None:
        print(json.dumps(values), file=figures, flush=True)

    told = asyncio.Event()
    threading.Thread(target=listen, args=(asyncio.get_running_loop(), told), daemon=True).start()
    make(kubeconfig, 0)
    if kind == "ours":
        import_module("tf_dist.airflow.jobs.job_waiter")  # an idle triggerer has imported it once, too
    collection = full_collection()
    idle, stalls = memory(), Stalls()
    watching = asyncio.ensure_future(stalls.watch())
    triggers = [make(kubeconfig, number) for number in range(count)]
    running = [asyncio.ensure_future(anext(trigger.run())) for trigger in triggers]
    await told.wait()  # all are there
    cpu, begun = time.process_time(), time.perf_counter()
    stalls.longest = 0.0
    tell(ready=True)
    await asyncio.sleep(seconds)
    looked_on = time.perf_counter() - begun  # longer, if the event loop was late
    cpu = (time.process_time() - cpu) / looked_on
    tell(cpu=cpu, memory=memory() - idle, stall=stalls.longest, seconds=looked_on, collection=collection)
    stalls.longest = 0.0
    cpu = time.process_time()
    tell(ready=True)
    found = await asyncio.gather(*running)
    ended = sum(event.payload.get("reached", event.payload.get("status") == "success") for event in found)
    tell(cpu=time.process_time() - cpu, stall=stalls.longest, ended=ended)
    for task in [watching, *running]:
        task.cancel()
    await asyncio.gather(watching, *running, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
