"""The launcher as a real process with real signals, against an embedded cluster."""

from __future__ import annotations

import base64
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.argo.stage import FOREVER, PATIENCE, Stage, Step, job
from tests.faults.proxy import Fault, Kind, Proxy
from tests.leaderless import controller
from tests.waiting import until
from tf_dist.argo.launcher import contract
from tf_dist.client.code_archive import pack_code
from tf_dist.cluster.api import CONFIG_MAPS, TFJOBS, Object
from tf_dist.core.model.names import CODE

TRAINING = "for i in 1 2 3; do echo step=$i loss=0.$i; done; echo checkpoint=/models/ckpt-3 accuracy=0.97"


def status_of(stored: Object) -> dict[str, Any]:
    return dict((stored.get("status") or {}).get("tfDist") or {})


def running(step: Step) -> None:
    """Wait until the job runs."""
    step.until(lambda: [status_of(one).get("phase") for one in step.jobs()] == ["Running"])


def test_a_job_that_succeeds(scene: Stage) -> None:
    step = scene.step(job(TRAINING, workers=2))
    launcher = step.launch("total_steps=3", "model_dir=/models", anew=True)
    assert launcher.code() == 0, launcher.text
    assert "worker-1 | step=2 loss=0.2" in launcher.text
    assert launcher.lines[0].endswith(f": step {step.workflow['metadata']['name']}.train")
    found = step.outputs()
    assert found["status"] == "Succeeded"
    assert found["checkpoint"] == "/models/ckpt-3"
    assert found["metric-accuracy"] == "0.97"
    assert found["metrics"] == '{"accuracy": 0.97, "loss": 0.3, "step": 3.0}'
    assert (found["replica"], found["exit-code"]) == ("", "")
    assert set(contract.OUTPUTS) <= set(found)
    assert step.progress.read_text().strip() == "3/3"
    (stored,) = step.jobs()
    assert found["job"] == stored["metadata"]["name"]
    assert stored["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Workflow",
            "name": step.workflow["metadata"]["name"],
            "uid": step.workflow["metadata"]["uid"],
            "controller": False,
            "blockOwnerDeletion": False,
        }
    ]
    assert len(step.pods()) == 2  # argo logs finds them
    container = step.pods()[0]["spec"]["containers"][0]
    assert {"name": "TF_DIST_MODEL_DIR", "value": "/models"} in container["env"]
    step.delete()


def test_replicas_run_in_the_code_that_goes_along(scene: Stage, tmp_path: Path) -> None:
    (tmp_path / "accuracy").write_text("0.97")
    step = scene.step(job('echo "accuracy=$(cat accuracy)"'))
    launcher = step.launch(f"code_archive={base64.b64encode(pack_code(tmp_path)).decode()}")
    assert launcher.code() == 0, launcher.text
    assert step.outputs()["metric-accuracy"] == "0.97"
    (part,) = scene.cluster.list(CONFIG_MAPS, scene.namespace, labels=CODE).items
    assert [one["kind"] for one in part["metadata"]["ownerReferences"]] == ["TFJob"]
    step.delete()


def test_a_value_that_is_refused_submits_nothing(scene: Stage) -> None:
    step = scene.step(job(TRAINING))
    declared = '{"name": "learning-rate", "path": "metadata.annotations.rate", "type": "number"}'
    launcher = step.launch(f"inputs={declared}", "values.learning-rate=0.05\nspec: {}")
    assert launcher.code() == 2
    assert "error: input learning-rate: '0.05\\nspec: {}' is not a number: write 0.05" in launcher.text
    assert "input learning-rate: " in step.outputs()["message"]
    assert step.jobs() == []
    step.delete()


def test_a_job_that_fails_tells_who_and_how(scene: Stage) -> None:
    step = scene.step(job("echo step=1; echo out of luck >&2; exit 3"))
    launcher = step.launch("total_steps=3")
    assert launcher.code() == 1
    found = step.outputs()
    assert (found["status"], found["replica"], found["exit-code"]) == ("Failed", "worker-0", "3")
    assert "worker-0 exited with code 3" in found["message"]
    assert found["metric-step"] == "1"
    assert "out of luck" in launcher.text
    assert step.progress.read_text().strip() == "1/3"
    step.delete()


def test_the_next_try_of_a_failed_step_makes_the_job_anew(scene: Stage) -> None:
    flag = scene.folder / "flag"
    step = scene.step(job(f"test -e {flag} && exit 0; exit 1"))
    assert step.launch().code() == 1
    (before,) = step.jobs()
    flag.touch()
    launcher = step.launch("retry=1", "retries=3")
    assert launcher.code() == 0, launcher.text
    (after,) = step.jobs()
    assert after["metadata"]["name"] == before["metadata"]["name"]
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    step.delete()


def test_what_has_succeeded_succeeds_again_without_another_run(scene: Stage) -> None:
    step = scene.step(job(TRAINING))
    assert step.launch().code() == 0
    (before,) = step.jobs()
    again = step.launch("retry=1", "retries=3")
    assert again.code() == 0
    assert "worker-0 | checkpoint=/models/ckpt-3" in again.text
    assert step.outputs()["checkpoint"] == "/models/ckpt-3"
    assert [one["metadata"]["uid"] for one in step.jobs()] == [before["metadata"]["uid"]]
    step.delete()


@pytest.mark.parametrize("how", ["Stop", "Terminate"])
def test_a_stopped_workflow_frees_everything(scene: Stage, how: str) -> None:
    step = scene.step(job(f"echo checkpoint=/models/ckpt-1; {FOREVER}", workers=2))
    launcher = step.launch("retries=3")
    launcher.said("worker-1 | up")
    step.shut_down(how)
    launcher.signal(signal.SIGTERM)
    assert launcher.code() == 143, launcher.text
    assert f"shut down ({how})" in launcher.text
    found = step.outputs()
    assert (found["status"], found["checkpoint"]) == ("Terminated", "/models/ckpt-1")
    step.until(lambda: not step.jobs() and not step.pods())


@pytest.mark.parametrize("lines", [1, 2, 3, 4, 5, 7])
def test_sigterm_at_any_moment_leaves_nothing(scene: Stage, lines: int) -> None:
    before = scene.leases()
    step = scene.step(job(FOREVER, workers=2))
    launcher = step.launch("on_term=delete", "grace=60s", anew=lines == 1)
    launcher.spoken(lines)
    launcher.signal(signal.SIGTERM)
    assert launcher.code() == 143, launcher.text
    assert step.outputs()["status"] == "Terminated"
    step.until(lambda: not step.jobs() and not step.pods())
    assert scene.leases() == before


def test_a_job_that_has_succeeded_by_then_has_succeeded(scene: Stage) -> None:
    document = job(TRAINING)
    slow = job("trap '' TERM; echo up; while :; do sleep 0.05; done")["spec"]["tfReplicaSpecs"]["Worker"]
    document["spec"]["tfReplicaSpecs"]["PS"] = slow  # takes its whole grace period to end
    step = scene.step(document)
    launcher = step.launch("on_term=delete")
    launcher.said("is Completing")
    launcher.signal(signal.SIGTERM)
    assert launcher.code() == 0, launcher.text
    assert step.outputs()["status"] == "Succeeded"
    assert len(step.jobs()) == 1
    step.delete()


def test_a_second_sigterm_ends_the_waiting_but_not_the_deletion(scene: Stage) -> None:
    step = scene.step(job("trap '' TERM; echo up; while :; do sleep 0.05; done"))
    launcher = step.launch("on_term=delete", "grace=600s")
    launcher.said("worker-0 | up")
    launcher.signal(signal.SIGTERM)
    launcher.said("asked to stop")
    step.until(lambda: not step.jobs())
    launcher.signal(signal.SIGTERM)
    assert launcher.code() == 143
    step.until(lambda: not step.pods())


def test_a_drained_launcher_leaves_the_job_and_the_next_try_goes_on_with_it(scene: Stage) -> None:
    flag = scene.folder / "drained"
    step = scene.step(job(f"echo up; until test -e {flag}; do sleep 0.05; done; {TRAINING}"))
    first = step.launch("retry=0", "retries=3")
    first.said("worker-0 | up")
    first.signal(signal.SIGTERM)
    assert first.code() == 143
    assert "only this pod must stop" in first.text
    (left,) = step.jobs()
    (pod,) = step.pods()
    second = step.launch("retry=1", "retries=3")
    second.said("continues with tfjob/")
    flag.touch()
    assert second.code() == 0, second.text
    assert [one["metadata"]["uid"] for one in step.jobs()] == [left["metadata"]["uid"]]
    assert [one["metadata"]["uid"] for one in step.pods()] == [pod["metadata"]["uid"]]
    assert step.outputs()["metric-accuracy"] == "0.97"
    step.delete()


def test_on_its_last_try_a_drained_launcher_takes_the_job_with_it(scene: Stage) -> None:
    step = scene.step(job(FOREVER))
    launcher = step.launch("retry=3", "retries=3")
    launcher.said("worker-0 | up")
    launcher.signal(signal.SIGTERM)
    assert launcher.code() == 143
    assert "not retried" in launcher.text
    step.until(lambda: not step.jobs() and not step.pods())


def test_killed_and_tried_again_it_goes_on_with_the_job(scene: Stage) -> None:
    flag = scene.folder / "killed"
    step = scene.step(job(f"echo up; until test -e {flag}; do sleep 0.05; done; {TRAINING}"))
    first = step.launch(anew=True)
    first.said("worker-0 | up")
    first.signal(signal.SIGKILL)
    assert first.code() == 137
    assert step.outputs()["status"] in ("Pending", "Running")  # as it was then
    (left,) = step.jobs()
    second = step.launch("retry=1", "retries=3")
    second.said("continues with tfjob/")
    flag.touch()
    assert second.code() == 0, second.text
    assert [one["metadata"]["uid"] for one in step.jobs()] == [left["metadata"]["uid"]]
    step.delete()


def test_a_suspended_job_gives_its_room_back_and_the_next_try_resumes_it(scene: Stage) -> None:
    flag = scene.folder / "suspended"
    step = scene.step(job(f"test -e {flag} && exit 0; {FOREVER}"))
    first = step.launch("on_term=suspend", "grace=60s")
    first.said("worker-0 | up")
    first.signal(signal.SIGTERM)
    assert first.code() == 143, first.text
    (left,) = step.jobs()
    assert status_of(left)["phase"] == "Aborted"
    assert not step.pods()
    flag.touch()
    second = step.launch("retry=1")
    assert second.code() == 0, second.text
    assert "resumes tfjob/" in second.text
    assert [one["metadata"]["uid"] for one in step.jobs()] == [left["metadata"]["uid"]]
    step.delete()


def test_a_job_that_somebody_suspends_is_waited_for(scene: Stage) -> None:
    flag = scene.folder / "resumed"
    step = scene.step(job(f"test -e {flag} && exit 0; {FOREVER}"))
    launcher = step.launch()
    running(step)
    (stored,) = step.jobs()
    name = stored["metadata"]["name"]
    scene.cluster.patch(TFJOBS, "default", name, {"spec": {"runPolicy": {"suspend": True}}})
    launcher.said("is Suspended")
    flag.touch()
    scene.cluster.patch(TFJOBS, "default", name, {"spec": {"runPolicy": {"suspend": False}}})
    assert launcher.code() == 0, launcher.text
    step.delete()


def test_why_a_job_waits_is_told(scene: Stage) -> None:
    step = scene.step(job(FOREVER, limits={"nvidia.com/gpu": "1"}))
    launcher = step.launch("on_term=delete")
    launcher.said("nvidia.com/gpu")
    step.until(lambda: "nvidia.com/gpu" in step.outputs()["message"])
    launcher.signal(signal.SIGTERM)
    assert launcher.code() == 143
    step.until(lambda: not step.jobs())


def test_an_image_without_a_program(scene: Stage) -> None:
    document = job("true")
    del document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["command"]
    step = scene.step(document)
    launcher = step.launch()
    assert launcher.code() == 1, launcher.text
    assert "ErrImageEntrypoint" in step.outputs()["message"]
    assert "set command in the container" in launcher.text
    step.delete()


def test_where_nobody_leads_the_time_is_over_all_the_same(scene: Stage) -> None:
    step = scene.step(job("true"))
    launcher = step.launch("driver=controller", "admission_timeout=2s")
    assert launcher.code() == 75, launcher.text
    step.until(lambda: not step.jobs())


def test_nothing_is_asked_again_and_again(scene: Stage) -> None:
    """While a training says a line every half second, its launcher has nothing to ask for: all of it is watched."""
    flag = scene.folder / "counted"
    ticks = "for i in 1 2 3 4 5 6; do sleep 0.5; echo tick=$i; done"
    step = scene.step(job(f"echo up; until test -e {flag}; do sleep 0.05; done; {ticks}; {FOREVER}"))
    address = urlsplit(scene.url)
    with controller(scene.cluster), Proxy((str(address.hostname), int(address.port or 0))) as proxy:
        launcher = step.launch("driver=controller", "on_term=delete", kubeconfig=scene.kubeconfig(proxy.url))
        launcher.said("worker-0 | up")
        running(step)
        watches = [one.call.resource for one in proxy.passed if one.call.verb == "watch"]
        assert sorted(watches) == ["pods", "tfjobs"]  # one each, and they go on
        before = len(proxy.passed)
        flag.touch()
        launcher.said("tick=6")
        assert len(proxy.passed) == before
        launcher.signal(signal.SIGTERM)
        assert launcher.code() == 143
        step.until(lambda: not step.jobs() and not step.pods())


def test_an_api_server_that_is_away_is_borne_with(scene: Stage) -> None:
    flag = scene.folder / "outage"
    step = scene.step(job(f"echo up; until test -e {flag}; do sleep 0.05; done; {TRAINING}"))
    address = urlsplit(scene.url)
    with Proxy((str(address.hostname), int(address.port or 0))) as proxy:
        launcher = step.launch(kubeconfig=scene.kubeconfig(proxy.url))
        launcher.said("worker-0 | up")
        refused = Fault(Kind.REFUSE, times=None, code=503)
        proxy.inject(refused)
        proxy.disconnect()
        flag.touch()
        step.until(lambda: [pod["status"]["phase"] for pod in step.pods()] == ["Succeeded"])
        assert launcher.process.poll() is None
        proxy.calm()
        assert launcher.code() == 0, launcher.text
    assert "worker-0 | checkpoint=/models/ckpt-3" in launcher.text
    assert step.outputs()["metric-accuracy"] == "0.97"
    step.delete()


def test_no_api_server_is_worth_another_try(scene: Stage) -> None:
    step = scene.step(job("true"))
    launcher = step.launch("driver=controller", kubeconfig=scene.kubeconfig("http://127.0.0.1:9"))
    assert launcher.code() == 75, launcher.text
    assert step.outputs()["status"] == "Error"


def test_outputs_that_cannot_be_written_are_told_before_anything_is_made(scene: Stage) -> None:
    step = scene.step(job("true"))
    step.out = Path("/dev/null/out")
    launcher = step.launch()
    assert launcher.code() == 2
    assert "out=DIR" in launcher.text
    assert step.jobs() == []


def test_a_job_of_somebody_elses(scene: Stage) -> None:
    step = scene.step(job("true"))
    dry = step.launch("--dry-run")
    assert dry.code() == 0
    name = yaml.safe_load(dry.text)["metadata"]["name"]
    assert step.jobs() == []
    scene.cluster.create(TFJOBS, "default", job("true", name=name))
    launcher = step.launch()
    assert launcher.code() == 2
    assert "does not belong to this step" in launcher.text
    scene.cluster.delete(TFJOBS, "default", name)


@pytest.mark.parametrize("choice", ["auto", "controller"])
def test_where_a_controller_leads_the_launcher_watches(scene: Stage, choice: str) -> None:
    with controller(scene.cluster) as leadership:
        until(lambda: bool(leadership.kinds()), PATIENCE)
        step = scene.step(job(f"echo up; sleep 0.5; {TRAINING}"))
        launcher = step.launch(f"driver={choice}")
        launcher.said("worker-0 | up")
        assert scene.leases() == []
        assert launcher.code() == 0, launcher.text
        step.delete()


def test_a_reader_that_does_not_read_holds_up_no_signal(scene: Stage) -> None:
    step = scene.step(job("yes step=1 and a line that is long enough to fill every buffer there is, soon"))
    launcher = step.launch("on_term=delete", "grace=60s", mute=True)
    running(step)
    launcher.signal(signal.SIGTERM)
    assert launcher.code() == 143
    assert step.outputs()["status"] == "Terminated"
    step.until(lambda: not step.jobs() and not step.pods())


def test_a_deleted_workflow_takes_its_job_along(scene: Stage) -> None:
    step = scene.step(job(FOREVER))
    launcher = step.launch("retries=3")
    launcher.said("worker-0 | up")
    scene.cluster.delete(contract.WORKFLOWS, "default", step.workflow["metadata"]["name"])
    assert launcher.code() == 1
    step.until(lambda: not step.jobs() and not step.pods())
