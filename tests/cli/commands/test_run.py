"""``run`` with real processes and without TensorFlow. Nothing is left behind, however the run ends."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Program, eventually
from tests.cli.processes import on_terminal, rest, until

FOREVER = "echo up; while :; do sleep 0.05; done"
POLITE = f"trap 'echo bye; exit 0' TERM; {FOREVER}"
DEAF = f"trap '' TERM; {FOREVER}"


def test_successful_job_prints_lines_and_summary(tf_dist: Program) -> None:
    script = "echo step=1 loss=0.5; echo step=2 loss=0.25 accuracy=0.97; echo checkpoint=/tmp/m-2"
    found = tf_dist("run", tf_dist.write("job.yaml", tf_dist.job(script, workers=2)))
    assert (found.returncode, found.stderr) == (0, ""), found.stdout
    assert "worker-0 | step=1 loss=0.5\n" in found.stdout
    assert "tf-dist  | job job is " in found.stdout
    summary = found.stdout.partition("\njob: ")[2].splitlines()
    assert summary[0] == "Succeeded"
    assert summary[1:5] == [
        "  accuracy:    0.9700",
        "  loss:        0.2500",
        "  step:        2",
        "  checkpoint:  /tmp/m-2",
    ]
    assert summary[6] == "  restarts:    0"
    assert tf_dist.leftovers() == []


def test_failed_job_prints_error_and_last_lines(tf_dist: Program) -> None:
    file = tf_dist.write("job.yaml", tf_dist.job("echo one; echo out of luck >&2; exit 3"))
    found = tf_dist("run", file)
    assert found.returncode == 1
    assert "worker-0 | out of luck" in found.stdout
    end = found.stdout.partition("\njob: ")[2]
    assert end.startswith("Failed\n")
    assert end.endswith("error: worker-0 exited with code 3\n    one\n    out of luck\n")
    assert tf_dist.leftovers() == []


def test_exception_is_first_line_below_error(tf_dist: Program) -> None:
    tf_dist.write("train.py", "print('step=1')\ndef fit():\n    raise ValueError('no data')\nfit()\n")
    found = tf_dist("run", tf_dist.write("job.yaml", tf_dist.job(f"exec {sys.executable} train.py")))
    end = found.stdout.partition("error: worker-0 exited with code 1\n")[2].splitlines()
    assert end[0] == "    ValueError: no data"
    assert "train.py" in end[1]
    assert "line 3, in fit" in end[1]
    assert end[-1] == "      step=1"


def test_script_with_windows_line_ends_is_explained(tf_dist: Program) -> None:
    script = tf_dist.folder / "train.sh"
    script.write_bytes(b"#!/bin/sh\r\necho hello\r\n")
    script.chmod(0o755)
    job = tf_dist.job()
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["command"] = ["./train.sh"]
    found = tf_dist("run", tf_dist.write("job.yaml", job))
    assert found.returncode == 1
    assert "no such interpreter: '/bin/sh\\r'" in found.stdout
    assert "what to do: the script has Windows line ends (CRLF)" in found.stdout


def test_exit_code_names_signal(tf_dist: Program) -> None:
    found = tf_dist("run", tf_dist.write("job.yaml", tf_dist.job("kill -SEGV $$$$")))
    assert found.returncode == 1
    assert "exited with code 139 (SIGSEGV" in found.stdout


def test_silent_failure_is_explained(tf_dist: Program) -> None:
    found = tf_dist("run", tf_dist.write("job.yaml", tf_dist.job("exit 3")))
    assert "what to do: its log is empty: let the program print why it ends" in found.stdout
    assert "tf-dist logs" not in found.stdout, "the job is deleted with its logs"


def test_restarts_are_counted(tf_dist: Program) -> None:
    script = "test -e first && echo accuracy=1 && exit 0; touch first; echo again; kill -9 $$$$"
    job = tf_dist.job(script)
    job["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "ExitCode"
    found = tf_dist("run", tf_dist.write("job.yaml", job), "-o", "json")
    report = json.loads(found.stdout)
    assert found.returncode == 0
    assert "worker-0 | again" in found.stderr
    assert report["state"] == "Succeeded"
    assert report["metrics"] == {"accuracy": 1}
    assert sum(report["restarts"].values()) == 1
    assert report["exitCode"] == 0


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_report_of_diverged_job_is_valid(tf_dist: Program, form: str) -> None:
    found = tf_dist("run", tf_dist.write("job.yaml", tf_dist.job("echo loss=nan acc=inf step=3")), "-o", form)
    report = yaml.safe_load(found.stdout) if form == "yaml" else json.loads(found.stdout, parse_constant=pytest.fail)
    for shown in (report, report["outcome"], *report["replicas"]):
        assert shown["metrics"] == {"loss": "nan", "acc": "inf", "step": 3}


def test_job_runs_in_folder_of_file_or_workdir(tf_dist: Program) -> None:
    (tf_dist.folder / "other").mkdir()
    file = tf_dist.write("job.yaml", tf_dist.job("pwd"))
    assert f"worker-0 | {tf_dist.folder}\n" in tf_dist("run", file).stdout
    assert f"worker-0 | {tf_dist.folder}/other\n" in tf_dist("run", file, "--workdir", "other").stdout
    assert tf_dist("run", file, "--workdir", "missing").returncode == 2


def test_companions_of_job_are_created(tf_dist: Program) -> None:
    companion = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"word": "hello"}}
    job = tf_dist.job('echo "$WORD to you"')
    (container,) = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["env"] = [{"name": "WORD", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "word"}}}]
    found = tf_dist("run", tf_dist.write("job.yaml", companion, job))
    assert "worker-0 | hello to you" in found.stdout
    alone = tf_dist("run", tf_dist.write("alone.yaml", job))
    assert alone.returncode == 2
    assert 'configmap "settings" not found' in alone.stderr
    assert alone.stdout == ""


def test_image_without_command_needs_entrypoint(tf_dist: Program) -> None:
    job = tf_dist.job()
    (container,) = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    del container["command"]
    file = tf_dist.write("job.yaml", job)
    found = tf_dist("run", file)
    assert (found.returncode, found.stdout) == (2, "")
    assert "job.yaml:1: spec.tfReplicaSpecs.Worker.template.spec.containers[0]: " in found.stderr
    assert "--entrypoint none=" in found.stderr
    assert "(the one that is given is of nome)" in tf_dist("run", file, "--entrypoint", "nome=sh").stderr
    helped = tf_dist("run", file, "--entrypoint", "none=sh -c 'echo from the image'")
    assert "worker-0 | from the image" in helped.stdout
    assert helped.returncode == 0
    assert tf_dist.leftovers() == []


@pytest.mark.parametrize(
    ("volume", "network", "told"),
    [
        ({"hostPath": {"path": "/nowhere/at/all"}}, "auto", "hostPath /nowhere/at/all does not exist"),
        ({"nfs": {"server": "x", "path": "/"}}, "auto", "nfs is not possible on a local node"),
        ({"emptyDir": {}}, "shared", "cannot be mounted at /data"),
    ],
)
def test_impossible_mount_is_reported(tf_dist: Program, volume: dict[str, object], network: str, told: str) -> None:
    job = tf_dist.job(volumes=[{"name": "data", **volume}])
    (container,) = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    found = tf_dist("run", tf_dist.write("job.yaml", job), "--network", network)
    assert (found.returncode, found.stdout) == (2, "")
    assert told in found.stderr
    assert "hint: " in found.stderr


def test_gang_larger_than_node_is_rejected(tf_dist: Program) -> None:
    job = tf_dist.job("echo never")
    (container,) = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["resources"] = {"limits": {"nvidia.com/gpu": 4}}
    file = tf_dist.write("job.yaml", job)
    found = tf_dist("run", file, "--node", "nvidia.com/gpu=2")
    assert found.returncode == 2
    assert "nvidia.com/gpu 2 on 1 node" in found.stdout
    assert "worker-0 |" not in found.stdout
    advice = found.stdout.rpartition("what to do: ")[2]
    assert advice == (
        "ask for less or for fewer replicas, or add nodes; on this machine, to try it without: "
        "tf-dist run --node nvidia.com/gpu=4\n"
    )


def test_warns_first_about_network_without_outside_access(tf_dist: Program) -> None:
    programs = tf_dist.folder / "programs"
    programs.mkdir()
    for name in ("sh", "python"):
        (programs / name).symlink_to(shutil.which(name) or "")
    file = tf_dist.write("job.yaml", tf_dist.job("echo up"))
    found = tf_dist("run", file, "--network", "isolated", PATH=str(programs))
    if found.returncode == 75:
        pytest.skip(found.stderr)
    assert found.stdout.startswith(
        "tf-dist  | pods reach each other but nothing outside this machine: install slirp4netns, or run with "
        "--network shared\n"
    )
    shared = tf_dist("run", file, "--network", "shared", PATH=str(programs))
    assert "nothing outside" not in shared.stdout


def test_relative_working_directory_is_rejected(tf_dist: Program) -> None:
    job = tf_dist.job("pwd")
    (container,) = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["workingDir"] = "sub"
    (tf_dist.folder / "sub").mkdir()
    found = tf_dist("run", tf_dist.write("job.yaml", job))
    assert (found.returncode, found.stdout) == (2, "")
    assert "containers[0]: workingDir 'sub' is a relative path" in found.stderr


def test_rejects_job_managed_by_another_controller(tf_dist: Program) -> None:
    job = tf_dist.job()
    job["spec"]["runPolicy"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    found = tf_dist("run", tf_dist.write("job.yaml", job))
    assert found.returncode == 2
    assert "spec.runPolicy.managedBy: another controller manages the job" in found.stderr
    assert "leave spec.runPolicy.managedBy out" in found.stderr


def test_timeout_stops_job_and_is_reported(tf_dist: Program) -> None:
    file = tf_dist.write("job.yaml", tf_dist.job(POLITE))
    for timeout in ("500ms", "5s", "60s"):  # a busy machine may need longer to start the job
        found = tf_dist("run", file, "--timeout", timeout)
        if "worker-0 | up" in found.stdout:
            break
        assert "job: stopped: the time limit is reached" in found.stdout
    assert found.returncode == 1
    assert "tf-dist  | the time limit is reached: stopping" in found.stdout
    assert "worker-0 | bye" in found.stdout
    assert "job: stopped: the time limit is reached" in found.stdout
    assert tf_dist.leftovers() == []


def test_keep_keeps_logs_and_prints_folder(tf_dist: Program) -> None:
    found = tf_dist("run", tf_dist.write("job.yaml", tf_dist.job("echo kept")), "--keep")
    (line,) = (line for line in found.stdout.splitlines() if "kept in:" in line)
    logs = list(Path(line.split()[-1]).rglob("*.log"))
    assert len(logs) == 1
    assert "kept" in logs[0].read_text()
    assert tf_dist.processes() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_stops_pods_with_grace_period(tf_dist: Program, number: int) -> None:
    process = tf_dist.start("run", tf_dist.write("job.yaml", tf_dist.job(POLITE, workers=2)))
    until(process, "worker-1 | up")
    process.send_signal(number)
    text = rest(process)
    assert process.returncode == 128 + number
    assert "stopping: pods get their grace period" in text
    assert "5 s; once more to kill them at once" in text
    assert "worker-1 | bye" in text
    assert f"job: interrupted by {signal.Signals(number).name}" in text
    assert tf_dist.leftovers() == []


def test_status_line_shows_remaining_grace_period(tf_dist: Program) -> None:
    file = tf_dist.write("job.yaml", tf_dist.job("trap 'sleep 1; exit 0' TERM; echo up; while :; do sleep 0.05; done"))
    code, text = on_terminal(tf_dist, "run", file, interrupted_at=b" up")
    assert code == 130
    assert re.search(r"job: Stopping \([45] s, Ctrl-C again to kill\)", text)


def test_second_signal_kills_job(tf_dist: Program) -> None:
    job = tf_dist.job("trap '' TERM; yes", workers=2)
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["terminationGracePeriodSeconds"] = 600
    process = tf_dist.start("run", tf_dist.write("job.yaml", job))
    until(process, "worker-0 | y")
    process.send_signal(signal.SIGTERM)
    until(process, "stopping: ")
    process.send_signal(signal.SIGTERM)
    rest(process)
    assert process.returncode == 143
    assert tf_dist.leftovers() == []


def test_signal_during_start_leaves_nothing(tf_dist: Program) -> None:
    """The exit code is that of the signal, and nothing is left behind."""
    process = tf_dist.start_anew("run", tf_dist.write("job.yaml", tf_dist.job(FOREVER)))
    assert eventually(lambda: any("runtime/__main__.py" in line for line in tf_dist.processes()))
    process.send_signal(signal.SIGTERM)
    rest(process)
    assert process.returncode == 143
    assert tf_dist.leftovers() == []


def test_killed_run_leaves_nothing(tf_dist: Program) -> None:
    process = tf_dist.start_anew("run", tf_dist.write("job.yaml", tf_dist.job(DEAF)))
    until(process, "worker-0 | up")
    process.kill()
    rest(process)
    assert eventually(lambda: tf_dist.leftovers() == []), tf_dist.leftovers()


def test_closed_pipe_ends_run_with_141(tf_dist: Program) -> None:
    script = "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.01; done"
    process = tf_dist.start_anew("run", tf_dist.write("job.yaml", tf_dist.job(script)))
    until(process, "line 3")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(120) == 141
    assert tf_dist.leftovers() == []


def test_progress_bars_and_missing_line_end_are_handled(tf_dist: Program) -> None:
    script = r"printf 'ten\rtwenty\rthirty\n\033[2Jcleared\n\377\nlast'"
    found = tf_dist("run", tf_dist.write("job.yaml", tf_dist.job(script)))
    # The last line appears when the log ends, possibly after lines of tf-dist.
    lines = [line for line in found.stdout.splitlines() if line.startswith("worker-0 | ")]
    assert lines == ["worker-0 | thirty", "worker-0 | cleared", "worker-0 | �", "worker-0 | last"]


def test_all_lines_of_large_output_arrive(tf_dist: Program) -> None:
    found = tf_dist("run", tf_dist.write("job.yaml", tf_dist.job("seq 1 30000")))
    lines = [line for line in found.stdout.splitlines() if line.startswith("worker-0 | ")]
    assert lines == [f"worker-0 | {number}" for number in range(1, 30001)]
