"""Volcano's job plugins: arguments as Volcano's sources parse them, refused plugins, and missing plugins."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.dialects.documents import Doc, changed, errors, only_error, template, volcano, warnings
from tf_dist.core.dialects import parse, read
from tf_dist.core.model.job import Plugins, Role, SSHPlugin


def with_plugins(**plugins: list[str] | None) -> Doc:
    return changed(volcano(), "spec.plugins", plugins)


@pytest.mark.parametrize(
    ("plugins", "expected"),
    [
        ({}, Plugins()),
        ({"env": None}, Plugins(env=True)),
        ({"svc": []}, Plugins(svc=True)),
        ({"tensorflow": []}, Plugins(svc=True)),
        ({"svc": ["--publish-not-ready-addresses"]}, Plugins(svc=True, publish_not_ready=True)),
        ({"svc": ["--publish-not-ready-addresses=true"]}, Plugins(svc=True, publish_not_ready=True)),
        ({"svc": ["--disable-network-policy=true"]}, Plugins(svc=True, network_policy=False)),
        ({"svc": ["--disable-network-policy=F"]}, Plugins(svc=True)),
        ({"svc": ["--inject-hosts-env=0"]}, Plugins(svc=True, hosts_env=False)),
        # "true" is not a flag and ends the parsing: the network policy stays.
        ({"svc": ["--publish-not-ready-addresses", "true", "--disable-network-policy"]}, {"publish_not_ready": True}),
        ({"svc": ["--disable-network-policy", "--nothing", "--inject-hosts-env=false"]}, {"network_policy": False}),
        ({"ssh": []}, Plugins(ssh=SSHPlugin())),
        ({"ssh": ["--ssh-port=2022"]}, Plugins(ssh=SSHPlugin(port=2022))),
        ({"ssh": ["--ssh-port=1"]}, Plugins(ssh=SSHPlugin(port=1))),
        ({"ssh": ["--ssh-port=65535"]}, Plugins(ssh=SSHPlugin(port=65535))),
        ({"ssh": ["--ssh-port=0"]}, Plugins(ssh=SSHPlugin())),
        ({"ssh": ["--ssh-port=70000"]}, Plugins(ssh=SSHPlugin())),
        ({"ssh": ["--ssh-key-file-path=/home/me/.ssh"]}, Plugins(ssh=SSHPlugin(path="/home/me/.ssh"))),
        (
            {"ssh": ["--ssh-private-key=one", "--ssh-public-key=two"]},
            Plugins(ssh=SSHPlugin(private_key="one", public_key="two")),
        ),
    ],
)
def test_parses_plugin_arguments(plugins: Any, expected: Plugins | dict[str, bool]):
    found = parse(with_plugins(**plugins)).job.plugins
    assert found == (expected if isinstance(expected, Plugins) else Plugins(svc=True, **expected))
    assert read(with_plugins(**plugins)).plugins == found


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--prot=1", "--ps=ps"], "--prot=1 is not known: it is not used, nor --ps=ps", "did you mean --port?"),
        (["port=1"], "port=1 is not a flag: it is not used", ""),
        (["--worker=wroker"], "names the task 'wroker', which the job does not have", "did you mean worker?"),
    ],
)
def test_warns_of_arguments_that_volcano_ignores(arguments: list[str], message: str, hint: str):
    (found,) = warnings(with_plugins(tensorflow=arguments))
    assert (found.path, message in found.message, hint) == ("spec.plugins.tensorflow", True, found.hint)


def test_env_plugin_takes_no_arguments():
    (found,) = warnings(with_plugins(env=["--x"], svc=[]))
    assert (found.path, "takes no arguments" in found.message) == ("spec.plugins.env", True)


@pytest.mark.parametrize(
    ("plugin", "arguments", "message"),
    [
        ("tensorflow", ["--port=no"], "--port is a port from 1 to 65535, not 'no'"),
        ("tensorflow", ["--port=65536"], "--port is a port from 1 to 65535"),
        ("tensorflow", ["--ps=worker"], "gives the task 'worker' two roles"),
        ("ssh", ["--ssh-key-file-path=.ssh"], "is an absolute path without ':'"),
    ],
)
def test_refuses_invalid_arguments(plugin: str, arguments: list[str], message: str):
    found = only_error(with_plugins(**{plugin: arguments}))
    assert (found.path, message in found.message) == (f"spec.plugins.{plugin}", True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ssh-port=0"], "--ssh-port is a port from 1 to 65535, not '0': Volcano takes 22"),
        (["--ssh-public-key=two"], "belong together"),
        (["--ssh-private-key=one", "--ssh-public-key=two"], "every user who may read the job can read the key"),
    ],
)
def test_warns_of_ssh_arguments(arguments: list[str], message: str):
    assert any(message in found.message for found in warnings(with_plugins(ssh=arguments)))


@pytest.mark.parametrize(
    ("plugin", "way_out"),
    [("mpi", "svc and ssh"), ("pytorch", "PyTorchJob"), ("ray", "RayJob"), ("hcclrank", "hccl/rankIndex")],
)
def test_unsupported_plugin_is_refused_with_hint(plugin: str, way_out: str):
    found = only_error(with_plugins(**{plugin: []}))
    assert (found.path, f"does not support Volcano's {plugin} plugin" in found.message) == (
        f"spec.plugins.{plugin}",
        True,
    )
    assert way_out in found.hint
    assert "\n" not in str(found)


def test_unknown_plugin_has_hint():
    assert [found.hint for found in errors(with_plugins(tensorflw=[]))] == ["did you mean tensorflow?"]


ROLES = {"ps": Role.PS, "worker": Role.WORKER, "chief": Role.CHIEF, "evaluator": Role.EVALUATOR}


@pytest.mark.parametrize("role", ROLES)
def test_task_has_role_from_plugin_argument(role: str):
    document = changed(with_plugins(tensorflow=[f"--{role}=trainer"]), "spec.tasks.1.name", "trainer")
    job = parse(document).job
    assert [spec.role for spec in job.replica_specs] == [Role.OTHER if role == "ps" else Role.PS, ROLES[role]]


@pytest.mark.parametrize("port", [1, 3333, 65535])
def test_plugin_port_overrides_container_ports(port: int):
    document = with_plugins(tensorflow=["--port", str(port)])
    pod = document["spec"]["tasks"][1]["template"]["spec"]["containers"][0]
    pod["ports"] = [{"name": "tfjob-port", "containerPort": 4444}]
    assert [spec.port for spec in parse(document).job.replica_specs] == [port, port]
    document["spec"]["plugins"]["tensorflow"] = []
    assert [spec.port for spec in parse(document).job.replica_specs] == [2222, 2222]


def uses(text: str, **container: Any) -> Doc:
    pod = template(restartPolicy="Never")
    pod["spec"]["containers"][0] |= {"command": ["sh", "-c", text], **container}
    return changed(volcano(), "spec.tasks.1.template", pod)


INDEX = [{"name": "VC_TASK_INDEX", "value": "0"}]
PLACE = "spec.tasks[1].template.spec.containers[0]"


@pytest.mark.parametrize(
    ("document", "plugins", "message"),
    [
        (uses("train --index=${VC_TASK_INDEX}"), {"svc": []}, "uses $VC_TASK_INDEX, which is not set without the env"),
        (uses("train --index=$VK_TASK_INDEX"), None, "uses $VK_TASK_INDEX"),
        (uses("train", args=["$(VC_TASK_INDEX)"]), {}, "uses $VC_TASK_INDEX"),
        (uses("train", env=[{"name": "I", "value": "$(VC_TASK_INDEX)"}]), {}, "uses $VC_TASK_INDEX"),
        (uses("train", lifecycle={"postStart": {"exec": {"command": ["$VC_TASK_INDEX"]}}}), {}, "uses $VC_TASK_INDEX"),
        (uses("train --index=${VC_TASK_INDEX}"), {"env": []}, ""),
        (uses("train --index=${VC_TASK_INDEX}", env=INDEX), {}, ""),
        (uses("train --index=${MY_VC_TASK_INDEXES}"), {}, ""),
        (uses("cat /etc/volcano/ps.host"), {"env": []}, "reads /etc/volcano, which does not exist without the svc"),
        (uses("cat /etc/volcano/ps.host"), {"svc": []}, ""),
        (uses("cat /etc/volcano/ps.host"), {"tensorflow": []}, ""),
        (uses("cat /etc/volcano/ps.host", volumeMounts=[{"name": "data", "mountPath": "/etc/volcano"}]), {}, ""),
        (uses("train --ps=$VC_PS_HOSTS"), {}, "uses $VC_PS_HOSTS, which is not set without the svc plugin"),
        (uses("train --ps=$VC_PS_NUM"), {"svc": ["--inject-hosts-env=false"]}, "not set with --inject-hosts-env=false"),
        (uses("train --ps=$VC_PS_HOSTS"), {"svc": []}, ""),
        (uses("train --ps=$VC_OTHER_HOSTS"), {}, ""),
    ],
)
def test_warns_of_program_that_needs_missing_plugin(document: Doc, plugins: Any, message: str):
    found = [(one.path, one.message) for one in warnings(changed(document, "spec.plugins", plugins))]
    assert [path for path, _ in found] == ([PLACE] if message else [])
    assert all(message in said for _, said in found)


def test_init_containers_are_checked_for_missing_plugins():
    document = with_plugins()
    first = {"name": "first", "image": "busybox", "command": ["sh", "-c", "until nslookup $(cat /etc/volcano/ps.host)"]}
    document["spec"]["tasks"][0]["template"]["spec"]["initContainers"] = [first]
    assert [found.path for found in warnings(document)] == ["spec.tasks[0].template.spec.initContainers[0]"]
