"""The launcher as a real process with real signals and an embedded cluster."""

from __future__ import annotations

import base64
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.argo.stage import FOREVER, PATIENCE, Stage, Step, job
from tests.faults.proxy import Proxy
from tests.leaderless import controller
from tests.waiting import until
from tf_dist.argo.launcher import contract
from tf_dist.client.code_archive import pack_code
from tf_dist.cluster.api import CONFIG_MAPS, Object
from tf_dist.core.model.names import CODE

TRAINING = "for i in 1 2 3; do echo step=$i loss=0.$i; done; echo checkpoint=/models/ckpt-3 accuracy=0.97"


def status_of(stored: Object) -> dict[str, Any]:
    return dict((stored.get("status") or {}).get("tfDist") or {})


def running(step: Step) -> None:
    """Wait until the job runs."""
    step.until(lambda: [status_of(one).get("phase") for one in step.jobs()] == ["Running"])


def test_successful_job_writes_outputs_and_progress(scene: Stage) -> None:
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
    assert len(step.pods()) == 2  # argo logs finds the pods
    container = step.pods()[0]["spec"]["containers"][0]
    assert {"name": "TF_DIST_MODEL_DIR", "value": "/models"} in container["env"]
    step.delete()


def test_replicas_run_in_submitted_code(scene: Stage, tmp_path: Path) -> None:
    (tmp_path / "accuracy").write_text("0.97")
    step = scene.step(job('echo "accuracy=$(cat accuracy)"'))
    launcher = step.launch(f"code_archive={base64.b64encode(pack_code(tmp_path)).decode()}")
    assert launcher.code() == 0, launcher.text
    assert step.outputs()["metric-accuracy"] == "0.97"
    (part,) = scene.cluster.list(CONFIG_MAPS, scene.namespace, labels=CODE).items
    assert [one["kind"] for one in part["metadata"]["ownerReferences"]] == ["TFJob"]
    step.delete()


@pytest.mark.parametrize("lines", [1, 2, 3, 4, 5, 7])
def test_sigterm_at_any_time_leaves_nothing(scene: Stage, lines: int) -> None:
    before = scene.leases()
    step = scene.step(job(FOREVER, workers=2))
    launcher = step.launch("on_term=delete", "grace=60s", anew=lines == 1)
    launcher.spoken(lines)
    launcher.signal(signal.SIGTERM)
    assert launcher.code() == 143, launcher.text
    assert step.outputs()["status"] == "Terminated"
    step.until(lambda: not step.jobs() and not step.pods())
    assert scene.leases() == before


def test_retry_after_kill_continues_job(scene: Stage) -> None:
    flag = scene.folder / "killed"
    step = scene.step(job(f"echo up; until test -e {flag}; do sleep 0.05; done; {TRAINING}"))
    first = step.launch(anew=True)
    first.said("worker-0 | up")
    first.signal(signal.SIGKILL)
    assert first.code() == 137
    assert step.outputs()["status"] in ("Pending", "Running")  # the last status that the launcher wrote
    (left,) = step.jobs()
    second = step.launch("retry=1", "retries=3")
    second.said("continues with tfjob/")
    flag.touch()
    assert second.code() == 0, second.text
    assert [one["metadata"]["uid"] for one in step.jobs()] == [left["metadata"]["uid"]]
    step.delete()


def test_reports_why_job_waits(scene: Stage) -> None:
    step = scene.step(job(FOREVER, limits={"nvidia.com/gpu": "1"}))
    launcher = step.launch("on_term=delete")
    launcher.said("nvidia.com/gpu")
    step.until(lambda: "nvidia.com/gpu" in step.outputs()["message"])
    launcher.signal(signal.SIGTERM)
    assert launcher.code() == 143
    step.until(lambda: not step.jobs())


def test_launcher_watches_instead_of_polling(scene: Stage) -> None:
    """While a job writes a line every half second, its launcher sends no requests, because it watches everything."""
    flag = scene.folder / "counted"
    ticks = "for i in 1 2 3 4 5 6; do sleep 0.5; echo tick=$i; done"
    step = scene.step(job(f"echo up; until test -e {flag}; do sleep 0.05; done; {ticks}; {FOREVER}"))
    address = urlsplit(scene.url)
    with controller(scene.cluster), Proxy((str(address.hostname), int(address.port or 0))) as proxy:
        launcher = step.launch("driver=controller", "on_term=delete", kubeconfig=scene.kubeconfig(proxy.url))
        launcher.said("worker-0 | up")
        running(step)
        watches = [one.call.resource for one in proxy.passed if one.call.verb == "watch"]
        assert sorted(watches) == ["pods", "tfjobs"]  # one watch for each kind, which continues
        before = len(proxy.passed)
        flag.touch()
        launcher.said("tick=6")
        assert len(proxy.passed) == before
        launcher.signal(signal.SIGTERM)
        assert launcher.code() == 143
        step.until(lambda: not step.jobs() and not step.pods())


def test_missing_api_server_is_retryable(scene: Stage) -> None:
    step = scene.step(job("true"))
    launcher = step.launch("driver=controller", kubeconfig=scene.kubeconfig("http://127.0.0.1:9"))
    assert launcher.code() == 75, launcher.text
    assert step.outputs()["status"] == "Error"


def test_unwritable_output_folder_fails_before_job_is_created(scene: Stage) -> None:
    step = scene.step(job("true"))
    step.out = Path("/dev/null/out")
    launcher = step.launch()
    assert launcher.code() == 2
    assert "out=DIR" in launcher.text
    assert step.jobs() == []


def test_launcher_does_not_lead_when_cluster_has_leader(scene: Stage) -> None:
    with controller(scene.cluster) as leadership:
        until(lambda: bool(leadership.kinds()), PATIENCE)
        step = scene.step(job(f"echo up; sleep 0.5; {TRAINING}"))
        launcher = step.launch()
        launcher.said("worker-0 | up")
        assert scene.leases() == []
        assert launcher.code() == 0, launcher.text
        step.delete()


def test_blocked_output_does_not_delay_signal(scene: Stage) -> None:
    step = scene.step(job("yes step=1 and a line that is long enough to fill every buffer there is, soon"))
    launcher = step.launch("on_term=delete", "grace=60s", mute=True)
    running(step)
    launcher.signal(signal.SIGTERM)
    assert launcher.code() == 143
    assert step.outputs()["status"] == "Terminated"
    step.until(lambda: not step.jobs() and not step.pods())
