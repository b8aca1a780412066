"""Container logs, from the pipes of the container to the reader."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.cluster.kubelet.bench import Bench, MakeBench, make_pod, py, sh, until
from tf_dist.cluster.api import LogOptions
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode, RestartBackoff
from tf_dist.cluster.kubelet.pod.container_logs import ContainerLogStream
from tf_dist.cluster.kubelet.runtime.event_loop import encode_message
from tf_dist.cluster.kubelet.runtime.log_file import LogFile, log_timestamp
from tf_dist.errors import Rejected


def read(path: Path, *, since: float = 0.0, **options: object) -> list[bytes]:
    return split(ContainerLogStream(path, LogOptions(**options), lambda: False, since=since))  # type: ignore[arg-type]


def split(stream: Iterable[bytes]) -> list[bytes]:
    return re.findall(rb"[^\n]*\n|[^\n]+", b"".join(stream))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c" / "0.log"


def test_lines_split_across_writes_are_read_whole(path: Path) -> None:
    log = LogFile(str(path), 1 << 20)
    for piece in (b"a", b"b\nc", b"", b"d\n\n", b"end"):
        log.write("stdout", piece)
    log.close()
    assert read(path) == [b"ab\n", b"cd\n", b"\n", b"end\n"]


def test_log_file_has_cri_format(path: Path) -> None:
    log = LogFile(str(path), 1 << 20)
    log.write("stdout", b"x" * 40_000 + b"\n")
    log.write("stderr", b"e\n")
    log.close()
    entries = path.read_bytes().splitlines()
    assert [re.sub(rb"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z ", b"", entry)[:8] for entry in entries] == [
        b"stdout P", b"stdout P", b"stdout F", b"stderr F",
    ]  # fmt: skip
    assert read(path) == [b"x" * 40_000 + b"\n", b"e\n"]


def test_log_preserves_arbitrary_bytes(path: Path) -> None:
    data = bytes(range(256)).replace(b"\n", b"") * 300
    log = LogFile(str(path), 1 << 20)
    log.write("stdout", data + b"\n")
    log.close()
    assert read(path) == [data + b"\n"]


def test_tail_and_timestamps(path: Path) -> None:
    log = LogFile(str(path), 1 << 20)
    log.write("stdout", b"1\n2\n3\n")
    log.close()
    assert read(path, tail=2) == [b"2\n", b"3\n"]
    assert read(path, tail=0) == []
    assert re.fullmatch(rb"\S+Z 3\n", read(path, tail=1, timestamps=True)[0])


def test_since_skips_older_lines(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("".join(f"{log_timestamp(seconds)} stdout F {seconds}\n" for seconds in (100, 200.5, 300)))
    assert read(path, since=200.5) == [b"200.5\n", b"300\n"]


def test_rotation_keeps_newest_lines(path: Path) -> None:
    log = LogFile(str(path), 4000)
    for number in range(1000):
        log.write("stdout", b"%d\n" % number)
    log.close()
    lines = read(path)
    assert lines[-1] == b"999\n"
    assert 50 < len(lines) < 1000
    assert lines == [b"%d\n" % number for number in range(1000 - len(lines), 1000)]


@pytest.mark.parametrize("rotations", [1, 2, 4])
def test_following_loses_no_lines_during_rotation(path: Path, rotations: int) -> None:
    log = LogFile(str(path), 4000)
    log.write("stdout", b"0\n")
    writing = threading.Event()
    writing.set()
    stream = ContainerLogStream(path, LogOptions(follow=True), writing.is_set)
    number, expected = 0, [b"0\n"]
    assert next(stream) == b"0\n"
    inode = path.stat().st_ino
    for _ in range(rotations):
        while path.stat().st_ino == inode:
            number += 1
            expected.append(b"%d\n" % number)
            log.write("stdout", expected[-1])
        inode = path.stat().st_ino
    log.close()
    writing.clear()
    assert [b"0\n", *split(stream)] == expected


def test_following_marks_gap_when_reader_is_too_slow(path: Path) -> None:
    log = LogFile(str(path), 4000)
    log.write("stdout", b"0\n")
    writing = threading.Event()
    writing.set()
    stream = ContainerLogStream(path, LogOptions(follow=True, timestamps=True), writing.is_set)
    first = next(stream)
    for number in range(1, 2000):
        log.write("stdout", b"%d\n" % number)
    log.close()
    writing.clear()
    lines = split([first, *stream])
    stamps, texts = zip(*(line.split(b" ", 1) for line in lines), strict=True)
    assert list(stamps) == sorted(stamps)
    (gap,) = [at for at, text in enumerate(texts) if b"lines may be missing here" in text]
    before, after = [[int(text) for text in part] for part in (texts[:gap], texts[gap + 1 :])]
    assert before == list(range(len(before)))
    assert after == list(range(2000 - len(after), 2000))
    assert len(before) + len(after) < 2000


def test_concurrent_reader_gets_every_line_and_disk_use_is_bounded(path: Path) -> None:
    limit, lines = 20_000, 20_000
    log = LogFile(str(path), limit)
    writing = threading.Event()
    writing.set()
    read_up_to = 0
    room = threading.Semaphore(1000)  # lines that the reader may lag, which the kept files can hold

    def write() -> None:
        for number in range(lines):
            room.acquire()
            log.write("stdout", b"%d\n" % number)
        log.close()
        writing.clear()

    writer = threading.Thread(target=write)
    log.write("stdout", b"begin\n")
    with ContainerLogStream(path, LogOptions(follow=True), writing.is_set) as stream:
        assert next(stream) == b"begin\n"
        writer.start()
        for some in stream:
            for line in split([some]):
                assert line == b"%d\n" % read_up_to
                read_up_to += 1
                room.release()
    writer.join()
    assert read_up_to == lines
    assert sum(file.stat().st_size for file in path.parent.iterdir()) <= 5 * limit


def test_log_survives_missing_folder_and_warns_once(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path.parent.write_text("in the way")
    log = LogFile(str(path), 4000)
    log.write("stdout", b"lost\n")
    path.parent.unlink()
    until(lambda: log.write("stdout", b"later\n") or path.exists())
    assert b"later\n" in read(path)
    shutil.rmtree(path.parent)
    for number in range(200):
        log.write("stdout", b"%d\n" % number)  # rotates files that no longer exist
    log.close()
    log.close()
    assert capfd.readouterr().err.count("are lost") == 1


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root may mount a small disk")
def test_full_disk_loses_lines_but_no_writes_fail(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        path = disk / "logs" / "0.log"
        log = LogFile(str(path), 1 << 20)
        for number in range(5000):
            log.write("stdout", b"%d filling\n" % number)
        os.truncate(disk / "logs" / "0.log", 30_000)
        log.write("stdout", b"room again\n")
        log.close()
        lines = read(path)
        assert lines[-1] == b"room again\n"
        assert lines[:-2] == [b"%d filling\n" % number for number in range(len(lines) - 2)]
    finally:
        subprocess.run(["umount", disk], check=True)


def test_container_runs_when_its_log_cannot_be_written(benches: MakeBench, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (kept / "default").mkdir(parents=True)
    (kept / "default" / "one").write_text("in the way")
    bench = benches(keep_logs_dir=kept, workdir=tmp_path)
    second = {"name": "second", "image": "x", "command": ["sh", "-c", "touch second"]}
    first = {"name": "first", "image": "x", "command": ["sh", "-c", "echo lost; touch first"]}
    assert bench.run(make_pod("one", containers=[first, second]))["phase"] == "Succeeded"
    assert bench.run(sh("two", "echo kept"))["phase"] == "Succeeded"
    assert (tmp_path / "first").exists()
    assert (tmp_path / "second").exists()
    assert bench.log("two") == "kept\n"


def test_failed_supervisor_command_does_not_lose_later_commands(bench: Bench) -> None:
    """All commands are in one message, as when many pods start at once."""
    for name in ("one", "two"):
        bench.create(sh(name, "echo up; while :; do sleep 0.05; done"))
        bench.says(name, "up")
    supervisor = bench.kubelet._supervisor
    uids = [bench.pod(name)["metadata"]["uid"] for name in ("one", "two")]
    bad = {"op": "run", "uid": uids[0], "name": "other", "attempt": 0, "streak": 0, "log": "\0", "order": 1 << 40}
    good = {"op": "stop", "uid": uids[1], "grace": 0, "order": 1 << 40}
    assert supervisor._socket is not None
    supervisor._socket.sendall(
        encode_message(bad) + encode_message({"op": "hosts", "uid": uids[0]}) + encode_message(good)
    )
    assert bench.over("two")["phase"] == "Failed"
    assert "running" in bench.container("one")["state"]


def test_old_logs_of_attempts_and_deleted_pods_are_removed(benches: MakeBench, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    bench = benches(keep_logs_dir=kept, backoff=RestartBackoff(0.01, 0.02, 600.0))
    bench.create(sh("loop", "echo one more; exit 1", restartPolicy="OnFailure"))
    until(lambda: bench.container("loop").get("restartCount", 0) >= 9)
    bench.delete("loop", grace_period=0)
    bench.gone("loop")
    numbers = sorted(int(path.stem) for path in kept.glob("default/loop/*/main/*.log"))
    assert len(numbers) <= 6
    assert numbers == list(range(numbers[-1] - len(numbers) + 1, numbers[-1] + 1))
    for _ in range(13):
        bench.run(sh("again", "echo x"))
        bench.delete("again")
        bench.gone("again")
    until(lambda: len(list((kept / "default" / "again").iterdir())) <= 10)


def test_follow_streams_lines_and_ends_with_container(bench: Bench) -> None:
    bench.create(sh("one", "for i in 1 2 3; do echo $i; while [ ! -e go$i ]; do sleep 0.01; done; done; echo end"))
    bench.running("one")
    folder = bench.kubelet._settings.workdir
    assert folder is not None
    with bench.cluster.logs("default", "one", LogOptions(follow=True)) as lines:
        for number in (1, 2, 3):
            assert next(lines) == b"%d\n" % number
            (folder / f"go{number}").touch()
        assert list(lines) == [b"end\n"]


def test_closing_stream_from_another_thread_ends_reader(bench: Bench) -> None:
    bench.create(sh("one", "echo up; sleep 1000"))
    bench.says("one", "up")
    stream = bench.cluster.logs("default", "one", LogOptions(follow=True))
    seen: list[bytes] = []
    reader = threading.Thread(target=lambda: seen.extend(stream))
    reader.start()
    until(lambda: seen)
    stream.close()
    reader.join(60)
    assert not reader.is_alive()


def test_fifty_megabytes_of_output_use_bounded_memory(benches: MakeBench) -> None:
    bench = benches(network=NetworkMode.SHARED)
    script = "import sys\nfor i in range(500): sys.stdout.write(('%06d ' % i + 'x' * 92 + '\\n') * 1050)\nprint('end')"
    assert bench.run(py("one", script))["phase"] == "Succeeded"
    count, last = 0, b""
    with bench.cluster.logs("default", "one") as lines:
        for some in lines:
            count, last = count + some.count(b"\n"), some
    assert last.endswith(b"\nend\n")
    assert count > 250_000  # the rest was rotated away
    memory = Path(f"/proc/{bench.kubelet.supervisor_pid}/status").read_text()
    assert int(re.findall(r"VmHWM:\s+(\d+) kB", memory)[0]) < 64 << 10


def test_binary_data_and_very_long_lines_are_logged(bench: Bench) -> None:
    script = "import os; os.write(1, bytes(range(256)) * 4000); os.write(2, b'\\xff\\n')"
    assert bench.run(py("one", script))["phase"] == "Succeeded"
    with bench.cluster.logs("default", "one") as lines:
        data = b"".join(lines)
    assert len(data) >= 256 * 4000


def test_log_of_waiting_container_is_rejected(bench: Bench) -> None:
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "never", "key": "a"}}}]
    bench.create(sh("one", "true", container={"env": env}))
    until(lambda: "waiting" in bench.container("one").get("state", {}))
    with pytest.raises(Rejected, match="is waiting to start: CreateContainerConfigError"):
        bench.log("one")
    with pytest.raises(Rejected, match="previous terminated container"):
        bench.log("one", previous=True)


def test_since_seconds_skips_older_lines(bench: Bench) -> None:
    bench.run(sh("one", "echo old"))
    assert bench.log("one", since_seconds=1000) == "old\n"
    began = time.time()
    until(lambda: time.time() > began + 0.01)
    assert bench.log("one", since_seconds=0) == ""
