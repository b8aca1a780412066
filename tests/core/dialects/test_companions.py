"""The rules of companion objects. ``tests/deploy/test_server_rules.py`` compares them with an API server."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.core.dialects.valid_objects import COMPANIONS, changed_objects
from tf_dist.core.dialects.companions import check_companion
from tf_dist.core.dialects.field_errors import FieldErrors
from tf_dist.core.openapi.kubernetes_types import type_mistakes


def problems(content: Any) -> list[tuple[str, str]]:
    out = FieldErrors()
    check_companion(content, out)
    return [(problem.path, problem.message) for problem in out.errors]


def changed(name: str, **fields: Any) -> dict[str, Any]:
    content: dict[str, Any] = copy.deepcopy(COMPANIONS[name])
    for field, value in fields.items():
        if isinstance(content.get(field), dict):
            content[field] = {**content[field], **value}
        else:
            content[field] = value
    return content


@pytest.mark.parametrize("name", COMPANIONS)
def test_accepts_valid_companions(name: str) -> None:
    assert problems(COMPANIONS[name]) == []


PORT = {"port": 80}


@pytest.mark.parametrize(
    ("content", "path"),
    [
        (changed("configmap", data={"a b": "x"}), 'data["a b"]'),
        (changed("configmap", data={"": "x"}), 'data[""]'),
        (changed("configmap", data={"b": "x"}), "binaryData.b"),
        (changed("configmap", data={"a.txt": "x" * 2**20}), "data"),
        (changed("configmap", metadata={"labels": {"a": "b c"}}), "metadata.labels.a"),
        (changed("secret", stringData={"../x": "x"}), 'stringData["../x"]'),
        (changed("secret", data={"b": "QUFB" * 350_000}), "stringData"),
        (changed("secret", type="kubernetes.io/tls", data={"tls.key": ""}), 'data["tls.crt"]'),
        (changed("secret", type="kubernetes.io/ssh-auth"), "data.ssh-privatekey"),
        (changed("ssh-secret", stringData={"ssh-privatekey": ""}), "data.ssh-privatekey"),
        (changed("secret", type="kubernetes.io/basic-auth"), "data.username"),
        (changed("secret", type="kubernetes.io/service-account-token"), "metadata.annotations"),
        (changed("registry-secret", data={".dockerconfigjson": "aGk="}), 'data[".dockerconfigjson"]'),
        (changed("claim", spec={"accessModes": []}), "spec.accessModes"),
        (changed("claim", spec={"resources": {}}), "spec.resources.requests.storage"),
        (changed("service", metadata={"name": "1-service"}), "metadata.name"),
        (changed("service", metadata={"name": "a" * 64}), "metadata.name"),
        (changed("service", spec={"type": "NodePorts"}), "spec.type"),
        (changed("service", spec={"ports": []}), "spec.ports"),
        (changed("service", spec={"ports": [{"port": 0}]}), "spec.ports[0].port"),
        (changed("service", spec={"ports": [PORT, {"port": 81, "name": "a"}]}), "spec.ports[0].name"),
        (changed("service", spec={"ports": [{**PORT, "name": "a"}, {"port": 81, "name": "a"}]}), "spec.ports[1].name"),
        (changed("service", spec={"ports": [{**PORT, "name": "a"}, {**PORT, "name": "b"}]}), "spec.ports[1].port"),
        (changed("service", spec={"ports": [{**PORT, "targetPort": "a_b"}]}), "spec.ports[0].targetPort"),
        (changed("service", spec={"ports": [{**PORT, "nodePort": 30080}]}), "spec.ports[0].nodePort"),
        (changed("service", spec={"selector": {"a": "b c"}}), "spec.selector.a"),
        (changed("service", spec={"externalTrafficPolicy": "Local"}), "spec.externalTrafficPolicy"),
        (changed("service", spec={"internalTrafficPolicy": ""}), "spec.internalTrafficPolicy"),
        (changed("headless-service", spec={"clusterIP": "nowhere"}), "spec.clusterIP"),
        (changed("external-service", spec={"externalName": ""}), "spec.externalName"),
        (changed("balanced-service", spec={"loadBalancerSourceRanges": ["x"]}), "spec.loadBalancerSourceRanges[0]"),
        (
            changed("balanced-service", spec={"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}}}),
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
        ),
    ],
)
def test_reports_invalid_companions(content: Any, path: str) -> None:
    ((found, _),) = problems(content)
    assert found.startswith(path)


def test_messages_do_not_contain_secrets() -> None:
    content = changed("registry-secret", stringData={".dockerconfigjson": "hunter2"}, data={"b": "hunter2="})
    assert "hunter2" not in str(problems(content))


@pytest.mark.parametrize("name", COMPANIONS)
def test_invalid_companions_raise_no_other_error(name: str) -> None:
    for _, _, new in changed_objects(COMPANIONS[name]):
        if not type_mistakes(new, new["kind"]):
            problems(new)
