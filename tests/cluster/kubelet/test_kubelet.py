"""Pods as processes, in both network modes."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from tests.cluster.kubelet.bench import Bench, MakeBench, make_pod, processes_with, py, sh, until
from tf_dist.cluster.api import CONFIG_MAPS, EVENTS, PODS, SECRETS, LogOptions
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode
from tf_dist.errors import NotFound, Rejected


def test_pod_runs_and_succeeds(bench: Bench) -> None:
    status = bench.run(sh("one", "echo hello; echo oops >&2"))
    assert status["phase"] == "Succeeded"
    terminated = status["containerStatuses"][0]["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (0, "Completed")
    assert sorted(bench.log("one").splitlines()) == ["hello", "oops"]
    ready = next(item for item in status["conditions"] if item["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "PodCompleted")


def test_running_pod_is_ready_and_has_address(bench: Bench) -> None:
    bench.create(sh("one", "sleep 100"))
    bench.running("one")
    status = bench.status("one")
    assert status["phase"] == "Running"
    assert status["podIP"]
    assert {item["type"]: item["status"] for item in status["conditions"]}["Ready"] == "True"


@pytest.mark.parametrize(
    ("script", "code", "signal"),
    [
        ("exit 3", 3, None),
        ("exit 255", 255, None),
        ("kill -9 $$$$", 137, 9),
        ("kill -TERM $$$$", 143, 15),
        ("kill -SEGV $$$$", 139, 11),
    ],
)
def test_exit_codes_and_signals_are_reported(bench: Bench, script: str, code: int, signal: int | None) -> None:
    status = bench.run(sh("one", f"echo last words; {script}"))
    assert status["phase"] == "Failed"
    terminated = status["containerStatuses"][0]["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"], terminated["message"]) == (code, "Error", "last words")
    assert terminated.get("signal") == signal


def test_container_has_environment_of_pod(bench: Bench) -> None:
    bench.cluster.create(CONFIG_MAPS, "default", {"metadata": {"name": "cm"}, "data": {"A": "1", "b.c": "2"}})
    bench.cluster.create(SECRETS, "default", {"metadata": {"name": "s"}, "data": {"k": "aGk="}})
    env = [
        {"name": "X", "value": "x"},
        {"name": "Y", "value": "$(X)-$$(X)-$(NOPE)-$(P_A)"},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ]
    source = [{"prefix": "P_", "configMapRef": {"name": "cm"}}]
    script = "import os, json, sys; print(json.dumps(dict(os.environ))); print(sys.argv[1:])"
    status = bench.run(py("one", script, container={"env": env, "envFrom": source, "args": ["$(Y)"]}))
    first, second = bench.log("one").splitlines()
    seen = json.loads(first)
    assert seen["Y"] == "x-$(X)-$(NOPE)-1"
    assert (seen["S"], seen["IP"], seen["HOSTNAME"]) == ("hi", status["podIP"], "one")
    assert "PYTEST_CURRENT_TEST" not in seen
    assert "KUBERNETES_SERVICE_HOST" not in seen
    assert second == "['x-$(X)-$(NOPE)-1']"


@pytest.mark.parametrize("network", list(NetworkMode)[1:])
def test_temporary_files_are_removed_with_container(
    benches: MakeBench, network: NetworkMode, open_folder: Path, tmp_path: Path
) -> None:
    bench = benches(network=network, state_dir=open_folder / "state")
    script = 'ls "$TMPDIR" | wc -l; mktemp >/dev/null; echo "$TMPDIR"'
    twice = f"{script}; echo x >> {tmp_path}/n; test $(wc -l < {tmp_path}/n) -ge 2"
    containers = [
        {"name": name, "image": "any", "command": ["sh", "-c", text]} for name, text in (("a", twice), ("b", script))
    ]
    status = bench.run(make_pod("one", containers=containers, restartPolicy="OnFailure"))
    assert status["containerStatuses"][0]["restartCount"] == 1
    files, folders = zip(*(bench.log("one", container=name).split() for name in "ab"), strict=True)
    assert files == ("0", "0"), "what another container, or the one before it, has left is not there"
    assert len({*folders, os.environ.get("TMPDIR", "/tmp")}) == 3
    bench.delete("one")
    bench.gone("one")
    until(lambda: not os.listdir(bench.kubelet.state_dir / "pods"))


@pytest.mark.parametrize("instead", ["ln -s {}", "ln -s /nowhere", "touch"], ids=["link", "broken link", "file"])
def test_restarted_container_has_new_temporary_folder_whatever_replaced_it(
    benches: MakeBench, open_folder: Path, tmp_path: Path, instead: str
) -> None:
    bench = benches(network=NetworkMode.SHARED, state_dir=open_folder / "state")
    (tmp_path / "elsewhere").mkdir()
    again, replace = tmp_path / "again", instead.format(tmp_path / "elsewhere")
    script = f'[ -e {again} ] && exec mktemp; touch {again}; rmdir "$TMPDIR"; {replace} "$TMPDIR"; exit 1'
    status = bench.run(sh("one", script, restartPolicy="OnFailure"))
    assert (status["phase"], status["containerStatuses"][0]["restartCount"]) == ("Succeeded", 1)
    assert os.listdir(tmp_path / "elsewhere") == []


def test_unix_sockets_fit_in_temporary_folder(benches: MakeBench, tmp_path: Path) -> None:
    bench = benches(network=NetworkMode.SHARED, state_dir=tmp_path / ("long" * 30))
    script = "from multiprocessing import Manager as M\nif __name__ == '__main__': print(M().list([1]))"
    assert bench.run(py("one", script))["phase"] == "Succeeded"
    assert bench.log("one") == "[1]\n"


def test_pod_can_set_its_own_temporary_folder(bench: Bench, tmp_path: Path) -> None:
    env = [{"name": "TMPDIR", "value": str(tmp_path)}]
    bench.run(sh("one", "mktemp", container={"env": env}))
    assert Path(bench.log("one").strip()).parent == tmp_path


def test_container_without_command_fails_with_hint(bench: Bench) -> None:
    status = bench.run(make_pod("one"))
    assert (status["phase"], status["reason"]) == ("Failed", "ErrImageEntrypoint")
    assert "--entrypoint any=" in status["message"]
    with pytest.raises(Rejected, match="waiting to start: ErrImageEntrypoint"):
        bench.log("one")


def test_missing_command_fails_with_127(bench: Bench) -> None:
    status = bench.run(make_pod("one", "no-such-program", "x"))
    terminated = status["containerStatuses"][0]["state"]["terminated"]
    assert (status["phase"], terminated["exitCode"], terminated["reason"]) == ("Failed", 127, "StartError")
    assert '"no-such-program"' in terminated["message"]
    assert "/usr/bin" in terminated["message"]


def test_reason_of_failed_start_may_be_long(bench: Bench) -> None:
    """The reason must not end the process above the containers, which receives it."""
    path = [{"name": "PATH", "value": ":".join(f"/nowhere/{number:05}" for number in range(6000))}]
    status = bench.run(make_pod("one", "nosuch", container={"env": path}))
    found = status["containerStatuses"][0]["state"]["terminated"]
    assert (found["exitCode"], found["reason"]) == (127, "StartError")
    assert found["message"].startswith('exec: "nosuch": executable file not found in PATH')


def test_file_that_is_not_executable_fails_with_126(bench: Bench) -> None:
    terminated = bench.run(make_pod("one", "/etc/hosts"))["containerStatuses"][0]["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (126, "StartError")


def test_working_directory_from_default_pod_or_annotation(bench: Bench, tmp_path: Path) -> None:
    default = bench.kubelet._settings.workdir
    bench.run(sh("default", "pwd"))
    bench.run(sh("own", "pwd", container={"workingDir": "/usr"}))
    (tmp_path / "here").mkdir()
    note = {"annotations": {"tf-dist.dev/workdir": str(tmp_path / "here")}}
    bench.run(sh("noted", "pwd", metadata=note, container={"workingDir": "/in-the-image"}))
    assert [bench.log(name).strip() for name in ("default", "own", "noted")] == [
        str(default),
        "/usr",
        str(tmp_path / "here"),
    ]


def test_deletion_sends_sigterm_and_keeps_last_lines(bench: Bench) -> None:
    bench.create(sh("one", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"))
    bench.says("one", "up")
    lines: list[bytes] = []
    stream = bench.cluster.logs("default", "one", LogOptions(follow=True))
    reader = threading.Thread(target=lambda: lines.extend(stream))
    reader.start()
    bench.delete("one")
    bench.gone("one")
    reader.join()
    said = b"".join(lines).splitlines()
    assert (said[0], said[-1]) == (b"up", b"bye")


def test_kills_a_container_that_ignores_sigterm(bench: Bench) -> None:
    bench.create(py("one", "import signal, time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(1000)"))
    bench.says("one", "up")
    bench.delete("one", grace_period=1)
    bench.gone("one")
    until(lambda: not os.listdir(bench.kubelet.state_dir / "pods"))


def test_pre_stop_hook_runs_before_sigterm(bench: Bench, tmp_path: Path) -> None:
    hook = {"lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", f"echo hook > {tmp_path}/seen"]}}}}
    script = f"trap 'cat {tmp_path}/seen > {tmp_path}/end; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    bench.create(sh("one", script, container=hook))
    bench.says("one", "up")
    bench.delete("one", grace_period=20)
    bench.gone("one")
    assert (tmp_path / "end").read_text() == "hook\n"


def test_detached_grandchildren_are_killed_with_container(bench: Bench, tmp_path: Path) -> None:
    mark = f"{tmp_path}/never"
    script = f"for i in 1 2 3; do setsid sh -c 'setsid tail -F {mark} & sleep 1' & done; sleep 0.2; echo up; exit 0"
    bench.run(sh("one", script))
    assert processes_with(mark) == []


def test_init_containers_run_in_order(bench: Bench, tmp_path: Path) -> None:
    def step(name: str) -> dict[str, object]:
        return {"name": name, "image": "any", "command": ["sh", "-c", f"echo {name} >> {tmp_path}/order"]}

    status = bench.run(sh("one", f"cat {tmp_path}/order", initContainers=[step("a"), step("b")]))
    assert status["phase"] == "Succeeded"
    assert bench.log("one") == "a\nb\n"
    assert [item["ready"] for item in status["initContainerStatuses"]] == [True, True]


def test_sidecar_does_not_keep_pod_running(bench: Bench) -> None:
    side = {"name": "side", "image": "any", "command": ["sleep", "1000"], "restartPolicy": "Always"}
    assert bench.run(sh("one", "echo done", initContainers=[side]))["phase"] == "Succeeded"
    until(lambda: bench.kubelet._supervisor.record(bench.pod("one")["metadata"]["uid"]) is None)


def test_active_deadline_ends_pod(bench: Bench) -> None:
    bench.create(sh("one", "sleep 1000"))
    bench.running("one")
    # The deadline is set only now, because a busy machine may need more than a second to start the pod.
    bench.cluster.patch(PODS, "default", "one", {"spec": {"activeDeadlineSeconds": 1}})
    status = bench.over("one")
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
    until(lambda: "terminated" in bench.container("one")["state"])


def test_two_containers_have_separate_logs(bench: Bench) -> None:
    pair = [
        {"name": "a", "image": "any", "command": ["sh", "-c", "echo from a"]},
        {"name": "b", "image": "any", "command": ["sh", "-c", "echo from b; exit 2"]},
    ]
    status = bench.run(make_pod("one", containers=pair))
    assert status["phase"] == "Failed"
    assert bench.log("one", container="b") == "from b\n"
    with pytest.raises(Rejected, match=r"a container name must be specified.*\[a b\]"):
        bench.log("one")
    with pytest.raises(Rejected, match="container c is not valid for pod one"):
        bench.log("one", container="c")


def test_end_of_container_does_not_affect_others(bench: Bench) -> None:
    """Namespace numbers are reused. The second container used to die with the first."""
    pair = [
        {"name": "a", "image": "any", "command": ["true"]},
        {"name": "b", "image": "any", "command": ["sh", "-c", "echo b"]},
    ]
    for number in range(30):
        bench.create(make_pod(f"p{number}", containers=pair))
    assert {bench.over(f"p{number}")["phase"] for number in range(30)} == {"Succeeded"}


def test_readiness_probe_determines_ready(bench: Bench, tmp_path: Path) -> None:
    probe = {"exec": {"command": ["test", "-e", f"{tmp_path}/ready"]}, "periodSeconds": 1}
    bench.create(sh("one", "sleep 1000", container={"readinessProbe": probe}))
    bench.running("one")
    assert not bench.container("one")["ready"]
    (tmp_path / "ready").touch()
    until(lambda: bench.container("one")["ready"])


def test_pod_deleted_before_start_leaves_nothing(bench: Bench) -> None:
    bench.create(sh("one", "sleep 1000"))
    bench.delete("one", grace_period=0)
    bench.gone("one")
    until(lambda: not bench.kubelet._supervisor.uids())


def test_process_of_deleted_pod_is_killed(bench: Bench, tmp_path: Path) -> None:
    mark = f"{tmp_path}/orphan"
    bench.create(sh("one", f"touch {mark}; exec tail -f {mark}"))
    until(lambda: processes_with(mark))
    bench.delete("one", grace_period=0)
    until(lambda: not processes_with(mark))


def test_many_pods_with_long_names_run_and_are_removed(bench: Bench) -> None:
    names = [f"{'n' * 60}-{number:02}" for number in range(20)]
    for name in names:
        bench.create(sh(name, "hostname"))
    assert [bench.over(name)["phase"] for name in names] == ["Succeeded"] * 20
    if bench.kubelet.network.mode == NetworkMode.ISOLATED:
        assert bench.log(names[7]) == names[7] + "\n"
    for name in names:
        bench.delete(name)
    until(lambda: not bench.cluster.list(PODS).items)
    until(lambda: not os.listdir(bench.kubelet.state_dir / "pods"))


def test_unchanged_pod_is_not_written(bench: Bench) -> None:
    bench.create(sh("one", "sleep 1000"))
    bench.running("one")
    uid = bench.pod("one")["metadata"]["uid"]
    version = bench.pod("one")["metadata"]["resourceVersion"]
    for _ in range(3):
        bench.kubelet._queue.add(uid)
    bench.run(sh("two", "true"))  # by its end, the kubelet has handled both pods
    assert bench.pod("one")["metadata"]["resourceVersion"] == version


def test_log_of_unknown_pod_is_not_found(bench: Bench) -> None:
    with pytest.raises(NotFound):
        bench.kubelet.logs("default", "missing")


def test_pod_waits_for_missing_reference_with_one_event(bench: Bench) -> None:
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "a"}}}]
    bench.create(sh("one", "echo $A", container={"env": env}))
    waiting = until(lambda: bench.container("one").get("state", {}).get("waiting"))
    assert waiting["reason"] == "CreateContainerConfigError"
    uid = bench.pod("one")["metadata"]["uid"]
    events = until(lambda: bench.cluster.list(EVENTS, "default", fields=f"involvedObject.uid={uid}").items)
    bench.kubelet._queue.add(uid)
    bench.cluster.create(CONFIG_MAPS, "default", {"metadata": {"name": "late"}, "data": {"a": "here"}})
    bench.over("one")
    assert bench.log("one") == "here\n"
    assert bench.cluster.list(EVENTS, "default", fields=f"involvedObject.uid={uid}").items == events
    assert (events[0]["type"], events[0]["reason"]) == ("Warning", "CreateContainerConfigError")
    assert 'configmap "late" not found' in events[0]["message"]


def test_omitted_token_is_reported_without_failing_pod(isolated: Bench, tmp_path: Path) -> None:
    token = {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    mount = {"volumeMounts": [{"name": "token", "mountPath": str(tmp_path)}]}
    isolated.run(sh("one", f"ls {tmp_path}", volumes=[token], container=mount))
    assert isolated.log("one") == ""
    (event,) = until(lambda: isolated.cluster.list(EVENTS, "default").items)
    assert (event["reason"], event["involvedObject"]["name"]) == ("TokenLeftOut", "one")


def test_pod_is_retried_when_its_folder_cannot_be_created(benches: MakeBench, open_folder: Path) -> None:
    bench = benches(state_dir=open_folder / "s")
    script = (
        'echo $TMPDIR; test -e went-wrong && exit 0; touch went-wrong; above=$(dirname "$TMPDIR");'
        'rm -rf "$above"; touch "$above"; exit 1'
    )
    bench.create(sh("one", script, restartPolicy="OnFailure"))
    until(lambda: "CreateContainerError" in str(bench.cluster.list(EVENTS, "default").items))
    assert bench.status("one")["phase"] not in ("Succeeded", "Failed")
    blocked = next(path for path in (bench.kubelet.state_dir / "pods").glob("t-*") if path.is_file())
    blocked.unlink()
    assert bench.over("one")["phase"] == "Succeeded"
