"""tf-dist refuses and accepts the same pod templates and companion objects as an API server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.core.dialects.documents import changed, v1
from tests.core.dialects.valid_objects import COMPANIONS, TEMPLATES, Loc, changed_objects
from tf_dist.client.job_files import load_job_files
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.core.dialects import parse
from tf_dist.errors import InvalidJob

pytestmark = pytest.mark.cluster

KUBERNETES = (1, 35)  # the version whose rules tf-dist has
AT = "spec.tfReplicaSpecs.Chief.template"
Create = Callable[[Any], str | None]
PLURALS = {"ConfigMap": "configmaps", "Secret": "secrets", "Service": "services", "Pod": "pods"}
STRICTER = (
    ("containers", 0, "name"),  # a TFJob needs its container
    ("terminationGracePeriodSeconds",),  # an API server takes a negative number for 1
    ("key",),  # a key that no ConfigMap can have
    ("localhostProfile",),  # an empty profile
    ("clusterTrustBundle",),  # the feature is not enabled by default
    ("clusterTrustBundle", "path"),
    ("scaleIO",),  # secretRef is required by the schema only
    ("scaleIO", "secretRef"),
)
"""The ends of paths at which tf-dist refuses more, because a job with such a value cannot be meant so."""
NO_BYTES: tuple[Loc, ...] = (("b",), ("tls.crt",), ("tls.key",), (".dockerconfigjson",))
"""An API server takes an empty list for base64 of nothing."""
LOOSER = (("hostProcess",),)
"""The ends of paths at which tf-dist accepts more, because the rule concerns Windows only."""


@pytest.fixture(scope="module")
def create(kubeconfig: str, admin: RestCluster) -> Iterator[Create]:
    """Creates an object without storing it. Returns the error of the API server, "" without an error, or None if the
    cluster lacks an object that the new object names, such as a ServiceAccount.
    """
    from kubernetes import client, config

    if admin.version() != KUBERNETES:
        pytest.skip(f"the rules are those of Kubernetes {KUBERNETES[0]}.{KUBERNETES[1]}")

    def post(body: Any) -> str | None:
        try:
            api.call_api(
                f"/api/v1/namespaces/default/{PLURALS.get(body['kind'], 'persistentvolumeclaims')}",
                "POST",
                body=body,
                query_params=[("dryRun", "All")],
                header_params={"Content-Type": "application/json", "Accept": "application/json"},
                auth_settings=["BearerToken"],
                _preload_content=False,
            )
        except client.ApiException as error:
            return None if error.status == 403 else str(json.loads(error.body)["message"])
        return ""

    with config.new_client_from_config(config_file=kubeconfig) as api:
        yield post


def differences(
    valid: Any, theirs: Callable[[Any], str | None], ours: Callable[[Any], str], stricter: tuple[Loc, ...]
) -> list[str]:
    """Changes of an object that only one of both refuses."""
    seen, found = set[str](), list[str]()
    assert (theirs(valid), ours(valid)) == ("", "")
    for loc, value, new in changed_objects(valid):
        text = json.dumps(new, sort_keys=True)
        if text not in seen:
            seen.add(text)
            server, here = theirs(new), ours(new)
            if server is not None and bool(server) != bool(here) and not ends_with(loc, stricter if here else LOOSER):
                found.append(f"{loc} = {str(value)[:80]}: server: {server[:200]!r} tf-dist: {here[:200]!r}")
    return found


@pytest.mark.parametrize("name", TEMPLATES)
def test_pod_rules_are_those_of_api_server(create: Create, name: str) -> None:
    def theirs(template: Any) -> str | None:
        return create(
            {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": "x"}}
        )

    def ours(template: Any) -> str:
        try:
            parse(changed(v1(), AT, template))
        except InvalidJob as error:
            return "; ".join(f"{problem.path}: {problem.message}" for problem in error.problems)
        return ""

    assert differences(TEMPLATES[name], theirs, ours, STRICTER) == []


@pytest.mark.parametrize("name", COMPANIONS)
def test_companion_rules_are_those_of_api_server(create: Create, name: str) -> None:
    def ours(content: Any) -> str:
        found = load_job_files(["a.json"], texts={"a.json": json.dumps(content)}).problems
        return "; ".join(f"{one.problem.path}: {one.problem.message}" for one in found if not one.warning)

    assert differences(COMPANIONS[name], create, ours, NO_BYTES) == []


def ends_with(loc: Loc, ends: tuple[Loc, ...]) -> bool:
    return any(loc[-len(end) :] == end for end in ends)
