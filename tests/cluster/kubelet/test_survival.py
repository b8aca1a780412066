"""After any process of the node is killed, ephemeral pods are gone and lasting pods still run."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.kubelet.bench import (
    Bench,
    MakeBench,
    processes_with,
    py,
    settings,
    sh,
    slirps,
    until,
    why_no_way_out,
    why_not_isolated,
)
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.apiserver.storage.sqlite import SqliteJournal
from tf_dist.cluster.kubelet.kubelet import Kubelet
from tf_dist.cluster.kubelet.node import state_dir
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode
from tf_dist.cluster.kubelet.runtime import linux

MODES = pytest.mark.parametrize("mode", [NetworkMode.ISOLATED, NetworkMode.SHARED])

KUBELET = """
import signal, sys
from pathlib import Path
from threading import Event
from tests.cluster.kubelet.bench import Bench, settings, sh
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.apiserver.storage.sqlite import SqliteJournal
from tf_dist.cluster.kubelet.kubelet import Kubelet
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode
folder, mode, ephemeral = Path(sys.argv[1]), NetworkMode(sys.argv[2]), sys.argv[3] == "ephemeral"
cluster = MemoryCluster(journal=SqliteJournal(folder / "db"))
kubelet = Kubelet(cluster, settings=settings(folder, network=mode, ephemeral=ephemeral))
kubelet.start()
bench = Bench(cluster, kubelet)
for name, script in zip(sys.argv[4::2], sys.argv[5::2]):
    bench.create(sh(name, script))
    bench.running(name)
print(kubelet.supervisor_pid, flush=True)
signal.pause()
"""


class KubeletProcess:
    """A kubelet in another process, which the test kills."""

    def __init__(self, folder: Path, mode: NetworkMode, kind: str, **pods: str) -> None:
        if mode == NetworkMode.ISOLATED and why_not_isolated():
            pytest.skip(why_not_isolated())
        arguments = [text for item in pods.items() for text in item]
        root = str(Path(__file__).parents[3])
        self.process = subprocess.Popen(
            [sys.executable, "-c", KUBELET, str(folder), mode, kind, *arguments],
            stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root},
        )  # fmt: skip
        assert self.process.stdout is not None
        self.supervisor = int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[str]:
    """A word for command lines. After the test, no process with the word and no folder may be left."""
    word = f"{tmp_path}/word"
    (tmp_path / "word").touch()
    yield word
    until(lambda: not processes_with(str(tmp_path)), "no process is left")
    until(lambda: not list(tmp_path.glob("state/*")), "no folder is left")


# A process that is detached from its session, its parent and its standard streams.
DAEMON = "setsid sh -c 'setsid tail -F {word} >/dev/null 2>&1 & sleep 0.1' & tail -F {word}"


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the process may end between opening and reading the file
        return False


def node_with_a_way_out(folder: Path, kind: str) -> tuple[int, int, KubeletProcess]:
    """The node's slirp4netns, the keeper that is its parent, and the kubelet."""
    if why_no_way_out():
        pytest.skip(why_no_way_out())
    other = KubeletProcess(folder, NetworkMode.ISOLATED, kind)
    (slirp,) = until(lambda: slirps(other.supervisor))
    keeper = int(Path(f"/proc/{slirp}/stat").read_text().rpartition(")")[2].split()[1])
    assert keeper in linux.child_pids(other.supervisor)
    return slirp, keeper, other


@MODES
def test_killed_ephemeral_kubelet_leaves_no_process_or_folder(
    tmp_path: Path, mode: NetworkMode, nothing_left: str
) -> None:
    other = KubeletProcess(tmp_path, mode, "ephemeral", a=DAEMON.format(word=nothing_left), b=f"tail -F {nothing_left}")
    until(lambda: len(processes_with(f"tail\0-F\0{nothing_left}")) == 3)
    other.kill()
    until(lambda: not alive(other.supervisor))


@MODES
def test_simultaneous_kill_of_kubelet_and_supervisor_ends_pods(tmp_path: Path, mode: NetworkMode) -> None:
    word = f"{tmp_path}/word"
    Path(word).touch()
    other = KubeletProcess(tmp_path, mode, "ephemeral", a=DAEMON.format(word=word))
    until(lambda: len(processes_with(f"tail\0-F\0{word}")) == 2)
    os.kill(other.process.pid, signal.SIGSTOP)
    os.kill(other.supervisor, signal.SIGKILL)
    other.kill()
    until(lambda: not processes_with(f"tail\0-F\0{word}"), "no process is left")
    until(lambda: not alive(other.supervisor))  # a dying owner still holds its lock
    (left,) = (tmp_path / "state").glob("run-*")
    with MemoryCluster() as cluster, Kubelet(cluster, settings=settings(tmp_path, network=mode)):
        assert not left.exists()
    assert not (tmp_path / "state").exists()


def test_next_kubelet_sweeps_processes_that_outlived_their_shim(tmp_path: Path) -> None:
    """In shared mode, a detached grandchild survives the kill of kubelet, supervisor and shim until the next start."""
    word = f"{tmp_path}/word"
    Path(word).touch()
    other = KubeletProcess(tmp_path, NetworkMode.SHARED, "ephemeral", a=DAEMON.format(word=word))
    until(lambda: len(processes_with(f"tail\0-F\0{word}")) == 2)
    every = [other.process.pid, *processes_with(str(tmp_path / "state"))]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in every:
            os.kill(pid, number)
    other.kill()
    until(lambda: not any(map(alive, every)))  # a dying owner still holds its lock
    with MemoryCluster() as cluster, Kubelet(cluster, settings=settings(tmp_path, network=NetworkMode.SHARED)):
        until(lambda: not processes_with(f"tail\0-F\0{word}"), "swept")
    assert not (tmp_path / "state").exists()


@MODES
def test_lasting_node_outlives_killed_kubelet(tmp_path: Path, mode: NetworkMode) -> None:
    stays = "echo up $$; i=0; while [ ! -e go ]; do i=$((i+1)); sleep 0.02; done; echo $$ went on; exit 7"
    ends = "echo early; while [ ! -e end ]; do sleep 0.02; done; exit 5"
    other = KubeletProcess(tmp_path, mode, "lasting", stays=stays, ends=ends)
    other.kill()
    assert alive(other.supervisor)
    (tmp_path / "end").touch()
    with MemoryCluster(journal=SqliteJournal(tmp_path / "db")) as cluster:
        with Kubelet(cluster, settings=settings(tmp_path, network=mode, ephemeral=False)) as kubelet:
            bench = Bench(cluster, kubelet)
            assert kubelet.supervisor_pid == other.supervisor
            assert bench.over("ends")["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 5
            assert bench.log("ends") == "early\n"
            assert bench.status("stays")["phase"] == "Running"
            (tmp_path / "go").touch()
            assert bench.over("stays")["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7
            first, second = bench.log("stays").splitlines()
            assert second.split()[0] == first.split()[1]
            assert bench.status("stays")["containerStatuses"][0]["restartCount"] == 0
        until(lambda: not alive(other.supervisor))
        until(lambda: not processes_with(str(tmp_path)))


def test_second_kubelet_takes_over_pods_of_stopped_kubelet(tmp_path: Path) -> None:
    lasting = settings(tmp_path, network=NetworkMode.SHARED, ephemeral=False)
    with MemoryCluster() as cluster:
        first = Kubelet(cluster, settings=lasting)
        first.start()
        bench = Bench(cluster, first)
        bench.create(sh("one", "echo 1; while [ ! -e go ]; do sleep 0.02; done; echo 2"))
        bench.running("one")
        first.stop(kill=False)
        with Kubelet(cluster, settings=lasting) as second:
            assert second.supervisor_pid == first.supervisor_pid
            bench = Bench(cluster, second)
            (tmp_path / "go").touch()
            assert bench.over("one")["phase"] == "Succeeded"
            assert bench.log("one") == "1\n2\n"


@MODES
@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_killed_supervisor_ends_its_pods_and_is_replaced(
    benches: MakeBench, tmp_path: Path, mode: NetworkMode, policy: str
) -> None:
    bench = benches(network=mode)
    word = f"{tmp_path}/word"
    Path(word).touch()
    bench.create(sh("one", f"[ -e again ] && exit 0; touch again; {DAEMON.format(word=word)}", restartPolicy=policy))
    until(lambda: len(processes_with(f"tail\0-F\0{word}")) == 2)
    before = bench.kubelet.supervisor_pid
    os.kill(before, signal.SIGKILL)
    status = bench.over("one")
    until(lambda: bench.kubelet.supervisor_pid != before)
    until(lambda: not processes_with(f"tail\0-F\0{word}"))
    if policy == "Never":
        assert (status["phase"], status["reason"]) == ("Failed", "SupervisorLost")
        assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    else:
        assert status["phase"] == "Succeeded"
        assert status["containerStatuses"][0]["lastState"]["terminated"]["reason"] == "SupervisorLost"
    assert bench.run(sh("two", "true"))["phase"] == "Succeeded"


@MODES
def test_killed_shim_ends_container_with_137(benches: MakeBench, tmp_path: Path, mode: NetworkMode) -> None:
    bench = benches(network=mode)
    word = f"{tmp_path}/word"
    Path(word).touch()
    bench.create(sh("one", DAEMON.format(word=word)))
    until(lambda: len(processes_with(f"tail\0-F\0{word}")) == 2)
    # A process may end together with another.
    linux.signal_pids(
        set(processes_with(str(bench.kubelet.state_dir))) - {bench.kubelet.supervisor_pid}, signal.SIGKILL
    )
    status = bench.over("one")
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    until(lambda: not processes_with(f"tail\0-F\0{word}"))


@MODES
def test_terminated_supervisor_is_replaced(benches: MakeBench, mode: NetworkMode) -> None:
    bench = benches(network=mode)
    bench.create(py("one", "import time; time.sleep(1000)"))
    bench.running("one")
    os.kill(bench.kubelet.supervisor_pid, signal.SIGTERM)
    assert bench.over("one")["reason"] == "SupervisorLost"
    assert bench.run(sh("two", "true"))["phase"] == "Succeeded"


@pytest.mark.parametrize("kind", ["ephemeral", "lasting"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_slirp_ends_with_killed_or_terminated_supervisor(tmp_path: Path, kind: str, number: int) -> None:
    slirp, keeper, other = node_with_a_way_out(tmp_path, kind)
    mark = next((tmp_path / "state").rglob("mark")).read_text()
    assert {slirp, keeper} <= linux.pids_with_variable(
        f"{state_dir.PROCESS_MARK}={mark}".encode()
    )  # a process that is left would be swept
    os.kill(other.process.pid, signal.SIGSTOP)  # a running kubelet would start another supervisor
    os.kill(other.supervisor, number)
    until(lambda: not any(map(alive, (slirp, keeper))))
    other.kill()


def test_slirp_ends_with_killed_ephemeral_kubelet(tmp_path: Path) -> None:
    slirp, keeper, other = node_with_a_way_out(tmp_path, "ephemeral")
    other.kill()
    until(lambda: not any(map(alive, (slirp, keeper, other.supervisor))))


@pytest.mark.parametrize("first", [0, 1], ids=["keeper last", "keeper first"])
def test_slirp_ends_when_kubelet_supervisor_and_keeper_are_killed_at_once(tmp_path: Path, first: int) -> None:
    slirp, keeper, other = node_with_a_way_out(tmp_path, "ephemeral")
    victims = [other.process.pid, other.supervisor, keeper]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in victims[::-1] if first else victims:
            os.kill(pid, number)
    other.kill()
    until(lambda: not alive(slirp))


def test_lasting_node_keeps_slirp_for_next_kubelet(tmp_path: Path) -> None:
    slirp, _, other = node_with_a_way_out(tmp_path, "lasting")
    other.kill()
    lasting = settings(tmp_path, network=NetworkMode.ISOLATED, ephemeral=False)
    with (
        MemoryCluster(journal=SqliteJournal(tmp_path / "db")) as cluster,
        Kubelet(cluster, settings=lasting) as kubelet,
    ):
        assert slirps(kubelet.supervisor_pid) == [slirp]
        assert not any("nothing outside" in limit for limit in kubelet.network.limits)
        bench = Bench(cluster, kubelet)
        bench.run(sh("one", "cat /proc/net/route /etc/resolv.conf"))
        assert "0200580A" in bench.log("one")
        assert "nameserver 10.88.0.3" in bench.log("one")
    until(lambda: not alive(slirp))


def test_replaced_supervisor_starts_slirp_again(benches: MakeBench) -> None:
    if why_no_way_out():
        pytest.skip(why_no_way_out())
    bench = benches(network=NetworkMode.ISOLATED)
    before = bench.kubelet.supervisor_pid
    os.kill(before, signal.SIGKILL)
    until(lambda: bench.kubelet.supervisor_pid != before)
    assert until(lambda: slirps(bench.kubelet.supervisor_pid))
    until(lambda: not slirps(before))


def test_state_dir_is_created_while_others_remove_its_empty_parent(tmp_path: Path) -> None:
    parent, stopped = tmp_path / "parent", threading.Event()

    def take_away() -> None:
        times = 50  # fewer than the folders that are created
        while times and not stopped.is_set():
            with contextlib.suppress(OSError):
                parent.rmdir()
                times -= 1

    rival = threading.Thread(target=take_away)
    rival.start()
    try:
        for _ in range(200):
            folder = state_dir.temporary_state_dir(parent)
            assert folder.path.exists()
            folder.release()
            shutil.rmtree(folder.path)
    finally:
        stopped.set()
        rival.join()


def test_state_dirs_in_use_are_not_swept(tmp_path: Path) -> None:
    one = state_dir.temporary_state_dir(tmp_path)
    two = state_dir.temporary_state_dir(tmp_path)
    assert one.path.exists()
    one.release()
    assert state_dir.sweep_abandoned(tmp_path) == [one.path]
    assert two.path.exists()
    two.release()


def test_deep_folder_of_a_program_does_not_stop_sweep(tmp_path: Path) -> None:
    left = state_dir.temporary_state_dir(tmp_path)
    left.release()
    script = "import os\nfor _ in range(1500): os.mkdir('deep'); os.chdir('deep')"
    subprocess.run([sys.executable, "-c", script], cwd=left.path, check=True)
    assert state_dir.sweep_abandoned(tmp_path) == [left.path]
    assert not left.path.exists()


def test_damaged_folder_does_not_stop_sweep(tmp_path: Path) -> None:
    folders = [state_dir.temporary_state_dir(tmp_path) for _ in range(4)]
    for one, name in zip(folders, ("mark", "mark", "lock", ""), strict=True):
        one.release()
        if name:
            (one.path / name).unlink()
            (one.path / name).mkdir()
    (folders[1].path / "mark").rmdir()
    (folders[1].path / "mark").write_bytes(b"\xff")
    assert sorted(state_dir.sweep_abandoned(tmp_path)) == sorted(folders[number].path for number in (0, 1, 3))
