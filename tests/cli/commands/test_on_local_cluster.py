"""The commands for submitted jobs, including ``scale``, on a real local cluster with real processes."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Program, eventually
from tests.cli.processes import FOREVER, name


def submitted(local: Program, script: str, *, workers: int = 1, **fields: Any) -> str:
    job = local.job(script, workers=workers, name=name(), **fields)
    job["spec"] |= {"successPolicy": "AllWorkers", "runPolicy": {"cleanPodPolicy": "None"}}
    found = local("submit", local.write("job.yaml", job))
    assert (found.returncode, found.stdout) == (0, f"tfjob/{job['metadata']['name']} submitted\n"), found.stderr
    return str(job["metadata"]["name"])


def state(local: Program, job: str) -> str:
    found = local("get", job, "-o", "json")
    return str((json.loads(found.stdout).get("status") or {}).get("tfDist", {}).get("phase", ""))


def test_job_from_submit_to_delete(local: Program) -> None:
    job = submitted(local, "echo hello; echo accuracy=0.9", workers=2)
    assert local("wait", job, "--for", "succeeded", "--timeout", "180s").stdout == f"tfjob/{job} Succeeded\n"
    assert local("get", job, "-o", "name").stdout == f"tfjob/{job}\n"
    titles, row = local("get", job).stdout.splitlines()
    assert titles.split() == ["NAME", "STATE", "READY", "RESTARTS", "AGE", "REASON"]
    assert row.split()[:4] == [f"tfjob/{job}", "Succeeded", "2/2", "0"]
    assert local("delete", job, "--wait").stdout == f"tfjob/{job} deleted\n"
    gone = local("get", job)
    assert gone.returncode == 2
    assert f"there is no job {job} in namespace default" in gone.stderr


def test_describe_and_explain_show_metrics_of_submitted_job(local: Program) -> None:
    job = submitted(local, "echo step=3 accuracy=0.9; echo checkpoint=/models/7; echo TensorBoard is not installed")
    local("wait", job, "--timeout", "180s")
    status = local("describe", job).stdout.partition("\nStatus\n")[2].partition("\n\n")[0]
    facts = dict(line.strip().split(": ", 1) for line in status.splitlines())
    assert [facts[name].strip() for name in ("accuracy", "step", "checkpoint")] == ["0.9000", "3", "/models/7"]
    outcome = json.loads(local("get", job, "-o", "json").stdout)["status"]["tfDist"]["outcome"]
    assert (outcome["metrics"], outcome["checkpoint"]) == ({"step": 3, "accuracy": 0.9}, "/models/7")
    described = json.loads(local("describe", job, "-o", "json").stdout)
    assert described["job"]["status"]["tfDist"]["outcome"]["metrics"]["accuracy"] == 0.9
    assert "warning: worker-0 writes summaries, and TensorBoard is not installed" in local("explain", job).stdout
    found = yaml.safe_load(local("explain", job, "-o", "yaml").stdout)
    assert (found["state"], found["findings"][1]["category"]) == ("Succeeded", "command")


def test_wait_prints_outcomes_as_json(local: Program) -> None:
    good, bad, runs = (submitted(local, script) for script in ("true", "exit 3", FOREVER))
    local("wait", good, "--timeout", "180s")
    found = local("wait", bad, good, runs, "-o", "json", "--timeout", "180s")
    assert found.returncode == 1
    failed, succeeded, undecided = json.loads(found.stdout)
    assert (failed["name"], failed["outcome"]["kind"], failed["outcome"]["exit_code"]) == (bad, "failed", 3)
    assert (succeeded["outcome"]["kind"], succeeded["outcome"]["restarts"]) == ("succeeded", 0)
    assert undecided["outcome"] is None
    local("delete", runs, "--wait")
    gone = local("wait", good, "-o", "json")
    assert (gone.returncode, json.loads(gone.stdout)[0]["outcome"]["kind"]) == (0, "succeeded")


def test_logs_of_replicas_are_in_order(local: Program) -> None:
    job = submitted(local, "for i in 1 2 3; do echo $i; sleep 0.05; done", workers=2)
    local("wait", job, "--timeout", "180s")
    lines = local("logs", job).stdout.splitlines()
    for replica in ("worker-0", "worker-1"):
        assert [line for line in lines if line.startswith(replica)] == [f"{replica} | {i}" for i in (1, 2, 3)]
    assert local("logs", job, "--replica", "worker-1").stdout == "worker-1 | 1\nworker-1 | 2\nworker-1 | 3\n"
    assert local("logs", job, "-r", "worker-1", "--tail", "1").stdout == "worker-1 | 3\n"
    stamped = local("logs", job, "-r", "worker-0", "--timestamps").stdout.splitlines()
    assert [line.split()[-1] for line in stamped] == ["1", "2", "3"]
    assert all(line.startswith("worker-0 | 20") for line in stamped)
    assert local("logs", job, "--since", "1h").stdout.count("\n") == 6
    wrong = local("logs", job, "--replica", "wroker-1")
    assert wrong.returncode == 2
    assert "did you mean worker-1?" in wrong.stderr


def test_follow_ends_with_job(local: Program) -> None:
    job = submitted(local, "echo one; until test -e go; do sleep 0.02; done; echo two")
    process = local.start("logs", job, "-f")
    assert process.stdout is not None
    with process.stdout as stream:
        assert stream.readline() == "worker-0 | one\n"
        (local.folder / "go").touch()
        assert stream.read() == "worker-0 | two\n"
    assert process.wait(120) == 0
    (local.folder / "go").unlink()


def test_follow_waits_for_start_of_job(local: Program) -> None:
    document = local.job("echo late", name=name())
    document["spec"]["runPolicy"] = {"suspend": True, "cleanPodPolicy": "None"}
    job = document["metadata"]["name"]
    local("submit", local.write("job.yaml", document))
    assert local("wait", job, "--for", "suspended", "--timeout", "180s").returncode == 0
    process = local.start("logs", job, "-f")
    assert local("resume", job).returncode == 0
    assert process.stdout is not None
    with process.stdout as stream:
        assert "worker-0 | late\n" in stream.read()
    assert process.wait(120) == 0


def test_previous_prints_log_of_previous_container(local: Program) -> None:
    script = "test -e again && echo second && exit 0; touch again; echo first; exit 1"
    document = local.job(script, name=name())
    document["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "OnFailure"
    document["spec"]["runPolicy"] = {"cleanPodPolicy": "None", "backoffLimit": 3}
    job = document["metadata"]["name"]
    local("submit", local.write("job.yaml", document))
    assert local("wait", job, "--timeout", "180s").returncode == 0
    assert local("logs", job).stdout == "worker-0 | second\n"
    assert local("logs", job, "--previous").stdout == "worker-0 | first\n"


def test_suspend_and_resume(local: Program) -> None:
    job = submitted(local, FOREVER, workers=2)
    assert local("wait", job, "--for=condition=Running", "--timeout", "180s").returncode == 0
    assert local("suspend", job).stdout == f"tfjob/{job} suspended\n"
    assert local("wait", job, "--for", "suspended", "--timeout", "180s").stdout == f"tfjob/{job} Suspended\n"
    explained = local("explain", job)
    assert explained.stdout.startswith(f"tfjob/{job} is Suspended.\n")
    assert "resume" in explained.stdout
    assert local("resume", f"tfjob/{job}").returncode == 0
    assert local("wait", job, "--for", "running", "--timeout", "180s").returncode == 0
    local("delete", job, "--wait")


def test_job_aborted_by_policy_can_be_resumed(local: Program) -> None:
    job = name()
    script = f": {local.token}; test -e {job} && exit 0; touch {job}; exit 1"
    container = {"name": "worker", "image": "none", "command": ["sh", "-c", script]}
    task = {
        "name": "worker",
        "replicas": 1,
        "policies": [{"event": "PodFailed", "action": "AbortJob"}, {"event": "TaskCompleted", "action": "CompleteJob"}],
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
    }
    document = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": job},
        "spec": {"minAvailable": 1, "tasks": [task]},
    }
    assert local("submit", local.write("job.yaml", document)).stdout == f"vcjob/{job} submitted\n"
    assert eventually(lambda: state(local, job) == "Aborted")
    assert local("get", f"vcjob/{job}").stdout.splitlines()[1].split()[1] == "Aborted"
    assert local("resume", job).returncode == 0
    assert local("wait", job, "--for", "succeeded", "--timeout", "180s").returncode == 0
    finished = local("suspend", job)
    assert finished.returncode == 2
    assert "has ended" in finished.stderr


def test_failed_job_is_explained(local: Program) -> None:
    job = submitted(local, "echo the reason >&2; exit 4")
    waited = local("wait", job, "--for", "succeeded", "--timeout", "180s")
    assert waited.returncode == 1
    assert "worker-0 exited with code 4" in waited.stderr
    explained = local("explain", job)
    assert explained.stdout.startswith(f"tfjob/{job} is Failed.\nerror: worker-0 exited with code 4\n    the reason\n")
    assert json.loads(local("explain", job, "-o", "json").stdout)["findings"][0]["category"] == "failure"
    described = local("describe", job).stdout
    for part in ("Status\n", "Conditions\n", "Replicas\n", "Events\n", "Diagnosis\n", "worker-0 exited with code 4"):
        assert part in described
    report = json.loads(local("describe", job, "-o", "json").stdout)
    assert {"job", "pods", "events", "diagnosis"} == set(report)


def test_waiting_job_is_explained(local: Program) -> None:
    document = local.job("true", name=name())
    (container,) = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["resources"] = {"requests": {"cpu": "1000"}}
    job = document["metadata"]["name"]
    local("submit", local.write("job.yaml", document))
    assert eventually(lambda: "cpu 1000" in local("explain", job).stdout)
    waited = local("wait", job, "--for", "running", "--timeout", "200ms")
    assert waited.returncode == 75
    assert "not running yet, it is Waiting" in waited.stderr
    assert local("logs", job).returncode == 75
    local("delete", job)
    assert local("wait", job, "--for", "delete", "--timeout", "180s").returncode == 0


def test_submit_with_wait_returns_exit_code_of_job(local: Program) -> None:
    good, bad = local.job("true", name=name()), local.job("exit 1", name=name())
    assert local("submit", local.write("job.yaml", good), "--wait", "--timeout", "180s").returncode == 0
    assert local("submit", local.write("job.yaml", bad), "--wait", "--timeout", "180s").returncode == 1


def test_submit_creates_several_jobs_and_companions(local: Program) -> None:
    first, second = local.job("true", name=name()), local.job("true", name=name())
    companion = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "b"}}
    file = local.write("all.yaml", companion, first, second)
    found = local("submit", file)
    names = [first["metadata"]["name"], second["metadata"]["name"]]
    assert found.stdout == f"configmap/settings created\ntfjob/{names[0]} submitted\ntfjob/{names[1]} submitted\n"
    again = local("submit", file)
    assert again.returncode == 2
    assert f"there is a job {names[0]} in namespace default already" in again.stderr
    assert local("wait", *names, "--timeout", "180s").returncode == 0
    listed = yaml.safe_load(local("get", "-o", "yaml").stdout)
    assert set(names) <= {item["metadata"]["name"] for item in listed["items"]}
    assert local("delete", *names, "--wait").returncode == 0


def test_submit_creates_nothing_if_one_job_is_invalid(local: Program) -> None:
    good, bad = local.job("true", name=name()), local.job("true", name="Bad")
    found = local("submit", local.write("all.yaml", good, bad))
    assert (found.returncode, found.stdout) == (2, "")
    assert local("get", good["metadata"]["name"]).returncode == 2


def test_submit_accepts_every_job_format(local: Program) -> None:
    v1 = local.job("true", name=name())
    pod = v1["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    template = {"spec": {**pod, "restartPolicy": "Never"}}
    alpha = {"tfReplicaType": "MASTER", "replicas": 1, "template": template}
    others = [
        ("kubeflow.org/v1alpha1", "TFJob", {"replicaSpecs": [alpha]}),
        ("batch.volcano.sh/v1alpha1", "Job", {"tasks": [{"name": "worker", "replicas": 1, "template": template}]}),
    ]
    documents = [
        {"apiVersion": version, "kind": kind, "metadata": {"name": name()}, "spec": spec}
        for version, kind, spec in others
    ]
    found = local("submit", local.write("jobs.yaml", v1, *documents), "--wait", "--timeout", "180s")
    assert (found.returncode, found.stdout.count(" Succeeded"), found.stderr.count("error")) == (0, 3, 0), found
    jobs = [v1["metadata"]["name"], *(one["metadata"]["name"] for one in documents)]
    assert local("delete", *jobs, "--wait").returncode == 0


@pytest.mark.parametrize("command", ["get", "describe", "logs", "explain", "wait", "suspend", "resume", "delete"])
def test_missing_job_is_reported(local: Program, command: str) -> None:
    found = local(command, "nothing")
    assert (found.returncode, found.stdout) == (2, "")
    assert "there is no job nothing in namespace default" in found.stderr
    assert "hint: " in found.stderr


@pytest.mark.parametrize("command", ["get", "describe", "logs", "wait", "delete", "suspend"])
def test_empty_name_is_not_a_job(local: Program, command: str) -> None:
    """An unset variable of a script must not select all jobs."""
    found = local(command, "")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "error: NAME: '' is not a job\n  hint: write NAME, tfjob/NAME or vcjob/NAME\n"


def test_empty_name_is_not_a_queue(local: Program) -> None:
    found = local("queues", "")
    assert (found.returncode, found.stdout) == (2, "")
    assert "there is no queue ''" in found.stderr


def test_job_named_twice_is_deleted_once(local: Program) -> None:
    job = submitted(local, "true")
    found = local("delete", job, f"tfjob/{job}", job, "--wait")
    assert (found.returncode, found.stdout) == (0, f"tfjob/{job} deleted\n"), found.stderr


def test_get_watch_prints_changes_until_interrupt(local: Program) -> None:
    process = local.start("get", "-w")
    assert process.stdout is not None
    job = submitted(local, "true")
    with process.stdout as stream:
        for line in stream:
            if line.startswith(f"tfjob/{job}  Succeeded"):
                break
        process.send_signal(signal.SIGINT)
        stream.read()  # read output about other jobs: a closed pipe would change the exit code
    assert process.wait(120) == 130


def test_local_up_and_status_find_running_daemon(local: Program) -> None:
    again = local("local", "up")
    assert again.returncode == 0
    assert "is running already" in again.stdout
    report = json.loads(local("local", "status", "-o", "json").stdout)
    assert report["running"]
    assert "token" not in report
    kubeconfig = Path(report["kubeconfig"])
    assert kubeconfig.stat().st_mode & 0o077 == 0
    assert f"export KUBECONFIG={kubeconfig}" in local("local", "status").stdout
    assert report["network"]["reason"] in local("local", "status").stdout


def submit(local: Program, *, workers: int, annotations: dict[str, str] | None = None, dynamic: bool = True) -> str:
    job = local.job(FOREVER, workers=workers, name=name())
    job["metadata"]["annotations"] = annotations or {}
    job["spec"]["enableDynamicWorker"] = dynamic
    found = local("submit", local.write("job.yaml", job))
    assert found.returncode == 0, found.stderr
    called = str(job["metadata"]["name"])
    assert local("wait", called, "--for", "running", "--timeout", "30s").returncode == 0
    return called


def replicas(local: Program, job: str) -> dict[str, Any]:
    found = json.loads(local("get", job, "-o", "json").stdout)
    return {"asked": found["spec"]["tfReplicaSpecs"]["Worker"]["replicas"], "ready": found["status"]["tfDist"]["ready"]}


def test_scale_adds_and_removes_workers(local: Program) -> None:
    job = submit(local, workers=1)
    found = local("scale", job, "--workers", "3")
    assert (found.returncode, found.stdout) == (0, f"tfjob/{job} scaled from 1 to 3 workers\n"), found.stderr
    assert eventually(lambda: replicas(local, job) == {"asked": 3, "ready": "3/3"})
    assert local("scale", job, "-w", "3").stdout == f"tfjob/{job} has 3 workers already\n"
    assert local("scale", f"tfjob/{job}", "-w", "2").stdout == f"tfjob/{job} scaled from 3 to 2 workers\n"
    assert eventually(lambda: replicas(local, job) == {"asked": 2, "ready": "2/2"})
    assert local("delete", job, "--wait").returncode == 0


ELASTIC = {"tf-dist.dev/min-workers": "1", "tf-dist.dev/max-workers": "2"}


def test_scale_respects_bounds_of_elastic_job(local: Program) -> None:
    job = submit(local, workers=1, annotations=ELASTIC)
    refused = local("scale", job, "--workers", "4")
    assert refused.returncode == 2
    assert 'metadata.annotations["tf-dist.dev/max-workers"]' in refused.stderr
    assert "with 4 workers" in refused.stderr
    assert "Traceback" not in refused.stderr
    scaled = local("scale", job, "--workers", "2")
    assert scaled.returncode == 0
    assert "it is elastic: depending on waiting jobs, it has from 1 to 2 workers" in scaled.stderr
    assert replicas(local, job)["asked"] == 2
    assert local("delete", job, "--wait").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing", "-w", "2"], "there is no job missing"),
        (["missing", "-w", "-1"], "equal to 0"),
        (["missing"], "--workers"),
    ],
)
def test_scale_rejects_invalid_arguments(local: Program, arguments: list[str], said: str) -> None:
    found = local("scale", *arguments)
    assert found.returncode == 2
    assert said in found.stderr


def test_local_up_reports_folder_that_cannot_be_created(tf_dist: Program) -> None:
    (tf_dist.folder / "file").touch()
    for home in ("/proc/x", "file/home"):
        found = tf_dist("local", "up", TF_DIST_HOME=home)
        assert found.returncode == 2
        assert f"{home} cannot be made" in found.stderr
        assert "hint: name another state folder" in found.stderr
