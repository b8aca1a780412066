"""Companion objects of a job, on a real API server and with only the role ``tf-dist-driver``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.client.companions import CLAIM, config, put, secret, word_of
from tf_dist.client.submission import create_companion
from tf_dist.client.yaml_files import YamlDocument
from tf_dist.cluster.api import CONFIG_MAPS, SECRETS, Object, Resource
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.errors import AlreadyExists, Forbidden

pytestmark = pytest.mark.cluster

SERVICE = {"selector": {"a": "b"}, "ports": [{"port": 80}]}


@pytest.fixture
def driver(as_account: Callable[[str, str], RestCluster], drivers: str) -> RestCluster:
    """A client with the account ``tf-dist-driver`` in its namespace."""
    return as_account("tf-dist-driver", drivers)


@pytest.mark.parametrize(("body", "resource"), [(config, CONFIG_MAPS), (secret, SECRETS)], ids=["ConfigMap", "Secret"])
def test_companion_is_created_updated_and_protected_from_other_owners(
    admin: RestCluster, driver: RestCluster, namespace: str, body: Callable[..., Object], resource: Resource
) -> None:
    said = [put(driver, body(word), namespace=namespace) for word in ("hello", "hello", "bye")]
    assert said == ["created", "unchanged", "configured"]
    assert word_of({"kind": resource.kind, **admin.get(resource, namespace, "settings")}) == "bye"
    before = admin.get(resource, namespace, "settings")
    with pytest.raises(AlreadyExists, match="belongs to 'digits'"):
        put(driver, body("ours"), owner="another", namespace=namespace)
    assert admin.get(resource, namespace, "settings") == before
    with pytest.raises(Forbidden):
        put(driver, body(), namespace="default")


@pytest.mark.parametrize(("kind", "spec"), [("PersistentVolumeClaim", CLAIM), ("Service", SERVICE)])
def test_server_defaults_do_not_count_as_changes(
    admin: RestCluster, driver: RestCluster, namespace: str, kind: str, spec: Object
) -> None:
    written = YamlDocument("f", None, {"apiVersion": "v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}, None)
    said = [create_companion(driver, written, namespace, owner=owner) for owner in ("digits", "digits", "another")]
    assert said == ["created", "unchanged", "unchanged"]
