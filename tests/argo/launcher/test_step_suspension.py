"""Suspension of a job with its workflow, and tries that always create new jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.argo.launcher.launching import SECONDS, Launcher, Site, site
from tests.controller.harness import tfjob
from tests.faults.proxy import Fault, Kind, Proxy
from tests.waiting import until
from tf_dist.argo.launcher import contract
from tf_dist.argo.launcher.contract import WORKFLOWS
from tf_dist.client import exit_codes
from tf_dist.cluster.api import TFJOBS
from tf_dist.core.pipeline.workflow_stop import WORKFLOW


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path) as found:
        found.lead()
        yield found


def suspend_workflow(scene: Site, suspend: bool | None) -> None:
    """Suspend or resume like ``argo suspend`` and ``argo resume``."""
    scene.memory.patch(WORKFLOWS, "default", scene.workflow["metadata"]["name"], {"spec": {"suspend": suspend}})


def suspended_by(scene: Site) -> str:
    stored = scene.stored()
    assert stored is not None
    return str((stored["metadata"].get("annotations") or {}).get(contract.STOPPED_BY, ""))


def test_job_is_suspended_while_workflow_is_suspended(scene: Site) -> None:
    with Launcher(scene.options(look_every=0.05)) as launcher:
        scene.runs()
        suspend_workflow(scene, True)
        launcher.said("the workflow is suspended: suspends tfjob/")
        until(lambda: scene.buried() and scene.phase() == "Aborted" and not scene.pods(), SECONDS)
        assert suspended_by(scene) == WORKFLOW
        suspend_workflow(scene, None)
        launcher.said("resumes tfjob/")
        scene.runs()
        assert suspended_by(scene) == ""
        scene.ends()
        assert launcher.end() == exit_codes.SUCCEEDED
    assert launcher.text.count("suspends tfjob/") == 1


def test_changes_by_user_are_kept(scene: Site) -> None:
    with Launcher(scene.options(look_every=0.05)) as launcher:
        scene.runs()
        suspend_workflow(scene, True)
        until(lambda: scene.buried() and scene.phase() == "Aborted" and not scene.pods(), SECONDS)
        scene.memory.patch(TFJOBS, "default", scene.name, {"spec": {"runPolicy": {"suspend": False}}})
        scene.runs()  # although the workflow is suspended
        suspend_workflow(scene, None)
        until(lambda: suspended_by(scene) == "", SECONDS)
        scene.memory.patch(TFJOBS, "default", scene.name, {"spec": {"runPolicy": {"suspend": True}}})
        until(lambda: scene.buried() and scene.phase() == "Aborted" and not scene.pods(), SECONDS)
        scene.memory.patch(TFJOBS, "default", scene.name, {"spec": {"runPolicy": {"suspend": False}}})
        scene.runs()
        scene.ends()
        assert launcher.end() == exit_codes.SUCCEEDED


def test_job_continues_with_on_suspend_leave(scene: Site) -> None:
    suspend_workflow(scene, True)
    with Launcher(scene.options(look_every=0.05, on_suspend=False)) as launcher:
        scene.runs()
        scene.ends()
        assert launcher.end() == exit_codes.SUCCEEDED
    assert "suspend" not in launcher.text


def test_unreadable_workflow_is_reported_once(scene: Site) -> None:
    host, _, port = scene.server.app.url.removeprefix("http://").partition(":")
    proxy = scene.stack.enter_context(Proxy((host, int(port)), lambda _: None))
    proxy.inject(Fault(Kind.REFUSE, resources=frozenset({"workflows"}), times=None, code=403))
    with Launcher(scene.options(look_every=0.02, kubeconfig=scene.config(proxy.url))) as launcher:
        launcher.said("the workflow cannot be read")
        scene.runs()
        scene.ends()
        assert launcher.end() == exit_codes.SUCCEEDED
    assert launcher.text.count("the workflow cannot be read") == 1


def test_try_without_reattach_creates_new_job(scene: Site) -> None:
    scene.made()
    scene.runs()
    before = scene.uid()
    with Launcher(scene.options(reattach=False, retry=1)) as launcher:
        until(lambda: scene.buried() and scene.uid() not in ("", before), SECONDS)
        launcher.said("is not continued")
        scene.runs()
        scene.ends()
        assert launcher.end() == exit_codes.SUCCEEDED


def test_waiting_job_is_deleted_without_reattach(scene: Site) -> None:
    options = scene.options(tfjob(workers=50), admission_timeout=0.2, retry=0, retries=1, reattach=False)
    with Launcher(options) as launcher:
        assert launcher.end(scene.bury) == exit_codes.RETRYABLE
    assert scene.stored() is None
