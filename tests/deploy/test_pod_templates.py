"""What an API server refuses in a pod, tf-dist refuses in a template, and it accepts what an API server accepts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.core.dialects.documents import changed, v1
from tests.core.dialects.pod_templates import TEMPLATES, Loc, changed_templates
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.core.dialects import parse
from tf_dist.errors import InvalidJob

pytestmark = pytest.mark.cluster

NEWEST = (1, 35)  # the version whose rules tf-dist has
AT = "spec.tfReplicaSpecs.Chief.template"
Create = Callable[[Any], str | None]
STRICTER = (
    ("containers", 0, "name"),  # a TFJob needs its container
    ("terminationGracePeriodSeconds",),  # an API server takes a negative number for 1
    ("mountPath",),  # the kubelet begins a relative path with /
    ("key",),  # a key that no ConfigMap can have
    ("localhostProfile",),  # an empty profile
    ("clusterTrustBundle",),  # the feature is not enabled by default
    ("clusterTrustBundle", "path"),
    ("scaleIO",),  # secretRef is required by the schema only
    ("scaleIO", "secretRef"),
)
"""The ends of paths at which tf-dist refuses more, because a job with such a value cannot be meant so."""
LOOSER = (("hostProcess",),)
"""The ends of paths at which tf-dist accepts more, because the rule concerns Windows only."""


@pytest.fixture(scope="module")
def create(kubeconfig: str, admin: RestCluster) -> Iterator[Create]:
    """Creates a pod of a template, without storing it. Returns the error of the API server, "" without an error, or
    None if it lacks an object that the pod names, such as a ServiceAccount.
    """
    from kubernetes import client, config

    if admin.version() < NEWEST:
        pytest.skip(f"the rules are those of Kubernetes {NEWEST[0]}.{NEWEST[1]}")

    def post(template: Any) -> str | None:
        body = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": "x"}}
        try:
            api.call_api(
                "/api/v1/namespaces/default/pods",
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


def errors(template: Any) -> str:
    try:
        parse(changed(v1(), AT, template))
    except InvalidJob as error:
        return "; ".join(f"{problem.path}: {problem.message}" for problem in error.problems)
    return ""


@pytest.mark.parametrize("name", TEMPLATES)
def test_pod_rules_are_those_of_api_server(create: Create, name: str) -> None:
    valid, seen, wrong = TEMPLATES[name], set[str](), list[str]()
    assert (create(valid), errors(valid)) == ("", "")
    for loc, value, template in changed_templates(valid):
        text = json.dumps(template, sort_keys=True)
        if text in seen:
            continue
        seen.add(text)
        theirs, ours = create(template), errors(template)
        if theirs is not None and bool(theirs) != bool(ours) and not ends_with(loc, STRICTER if ours else LOOSER):
            wrong.append(f"{loc} = {str(value)[:80]}: server: {theirs[:200]!r} tf-dist: {ours[:200]!r}")
    assert wrong == []


def ends_with(loc: Loc, ends: tuple[Loc, ...]) -> bool:
    return any(loc[-len(end) :] == end for end in ends)
