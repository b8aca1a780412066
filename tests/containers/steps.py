"""A step of an Argo workflow on the cluster. Argo runs it if it is installed. Otherwise, a pod runs its container."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tests.argo.expressions import substituted
from tests.argo.launcher.launching import definition
from tests.containers.conftest import IMAGE, Namespace
from tests.waiting import until

WORKFLOWS = "workflows.argoproj.io"


def export(namespace: Namespace, folder: Path) -> None:
    """Export the shipped workflows, and create the role of steps in the namespace."""
    namespace.run("tf-dist", "workflows", "export", str(folder), "-n", namespace.name, "--image", IMAGE)
    namespace.kubectl("apply", "-f", str(folder / "rbac.yaml"))


def run_step(namespace: Namespace, template: dict[str, Any], **inputs: str) -> dict[str, str]:
    """Run a template as a step, delete its job, check that nothing is left, and return the outputs.

    ``inputs``: the parameters without a default.
    """
    if namespace.kubectl("get", "crd", WORKFLOWS, "--ignore-not-found"):
        outputs = _by_argo(namespace, template, inputs)
        namespace.delete(outputs["job"])
        return outputs
    workflows = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    workflows |= definition("Workflow", "workflows")
    namespace.kubectl("apply", "-f", "-", given=yaml.safe_dump(workflows))
    try:
        namespace.kubectl("wait", "--for=condition=Established", f"crd/{WORKFLOWS}", "--timeout=30s")
        outputs = _in_a_pod(namespace, template, inputs)
        namespace.delete(outputs["job"])
    finally:
        namespace.kubectl("delete", "crd", WORKFLOWS)
    return outputs


def _by_argo(namespace: Namespace, template: dict[str, Any], inputs: dict[str, str]) -> dict[str, str]:
    spec = {
        "entrypoint": template["name"],
        "serviceAccountName": "tf-dist-argo",
        "templates": [template],
        "arguments": {"parameters": [{"name": name, "value": value} for name, value in inputs.items()]},
    }
    workflow = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"generateName": "step-"}}
    made = namespace.kubectl("create", "-f", "-", "-o", "name", given=yaml.safe_dump(workflow | {"spec": spec}))
    name = made.strip().rpartition("/")[2]

    def status() -> dict[str, Any]:
        found: dict[str, Any] = namespace.job(name, WORKFLOWS).get("status", {})
        return found

    until(lambda: status().get("phase") in ("Succeeded", "Failed", "Error"), 300, every=1)
    nodes = status()["nodes"].values()
    return {
        one["name"]: one.get("value", "") for node in nodes for one in node.get("outputs", {}).get("parameters", [])
    }


def _in_a_pod(namespace: Namespace, template: dict[str, Any], inputs: dict[str, str]) -> dict[str, str]:
    """Run the pod that Argo would create from the template. The pod prints its outputs."""
    workflow = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": "wf"}}
    namespace.kubectl(
        "create", "-f", "-", given=yaml.safe_dump(workflow | {"spec": {}, "status": {"phase": "Running"}})
    )
    uid = namespace.job("wf", WORKFLOWS)["metadata"]["uid"]
    usual = {one["name"]: one.get("default", "") for one in template["inputs"]["parameters"]}
    scope = {f"inputs.parameters.{name}": value for name, value in {**usual, **inputs}.items()}
    scope |= {"workflow.name": "wf", "workflow.uid": uid, "node.name": "wf.train", "retries": "0"}
    container = template["container"]
    arguments = [*container["command"], *(substituted(word, scope) for word in container["args"])]
    script = '"$@"; code=$?; cd /tf-dist/out; for file in *; do echo "output $file=$(cat $file)"; done; exit $code'
    image = substituted(container["image"], scope)
    main = {**container, "name": "main", "image": image, "command": ["sh", "-c", script, "sh"], "args": arguments}
    spec = {
        "serviceAccountName": "tf-dist-argo",
        "restartPolicy": "Never",
        "containers": [main],
        "volumes": [{"name": "tf-dist-out", "emptyDir": {}}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "step"}, "spec": spec}
    namespace.kubectl("create", "-f", "-", given=yaml.safe_dump(pod))
    until(lambda: namespace.pods()["step"]["status"]["phase"] != "Pending", 60, every=0.5)
    log = namespace.kubectl("logs", "-f", "step")
    namespace.kubectl("delete", "pod", "step", "--now")
    return dict(re.findall(r"^output (\S+)=(.*)$", log, re.MULTILINE))
