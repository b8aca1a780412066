"""API priority and fairness, with the FlowSchema of docs/troubleshooting.md, on a real API server."""

from __future__ import annotations

import base64
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.deploy.conftest import SYSTEM
from tests.waiting import until

pytestmark = pytest.mark.cluster
PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"


@pytest.fixture
def flow_schema(kubectl: Callable[..., str]) -> Iterator[str]:
    """The uid of the FlowSchema on the page."""
    (text,) = re.findall(r"^```yaml\n([^`]*^kind: FlowSchema$[^`]*)^```", PAGE.read_text(), re.MULTILINE)
    kubectl("apply", "-f", "-", stdin=text)
    name = yaml.safe_load(text)["metadata"]["name"]
    yield kubectl("get", "flowschema", name, "-o", "jsonpath={.metadata.uid}")
    kubectl("delete", "flowschema", name)


def ranked_by(kubeconfig: str, path: str) -> str:
    """The uid of the FlowSchema that the API server applies to a request, from the response."""
    document = yaml.safe_load(Path(kubeconfig).read_text())
    server = document["clusters"][0]["cluster"]
    authority = base64.b64decode(server.get("certificate-authority-data", "")).decode() or None
    trust = ssl.create_default_context(cafile=server.get("certificate-authority"), cadata=authority)
    headers = {"Authorization": f"Bearer {document['users'][0]['user']['token']}"}
    request = urllib.request.Request(server["server"] + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30, context=trust) as answer:
            return str(answer.headers["X-Kubernetes-PF-FlowSchema-UID"])
    except urllib.error.HTTPError as refusal:  # 403 and 404 have a FlowSchema, too
        return str(refusal.headers["X-Kubernetes-PF-FlowSchema-UID"])


def test_flow_schema_matches_only_lease_requests_of_controller(
    flow_schema: str, config_of: Callable[[str, str], str], installed: str
) -> None:
    """It does not match other requests of the controller, or requests of other accounts."""
    config = config_of("tf-dist-controller", SYSTEM)
    until(lambda: ranked_by(config, f"{LEASES}/tf-dist-controller") == flow_schema, 60)
    assert ranked_by(config, "/apis/kubeflow.org/v1/tfjobs") != flow_schema
    assert ranked_by(config_of("default", SYSTEM), f"{LEASES}/tf-dist-controller") != flow_schema
