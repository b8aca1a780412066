"""Questions about oneself: the token's owner may do everything."""

from __future__ import annotations

from tf_dist.cluster.api import Object
from tf_dist.cluster.http.routes import Route

USER = "tf-dist"
_GROUPS = ["system:masters", "system:authenticated"]


def answer(route: Route, body: Object) -> Object | None:
    """The answered review; None if the place is no review."""
    statuses: dict[str, Object] = {
        "selfsubjectreviews": {"userInfo": {"username": USER, "groups": _GROUPS}},
        "selfsubjectaccessreviews": {"allowed": True, "reason": "the owner of an embedded cluster may do everything"},
        "selfsubjectrulesreviews": {
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": False,
        },
    }
    if route.plural not in statuses or route.group not in ("authentication.k8s.io", "authorization.k8s.io"):
        return None
    return {"metadata": {"creationTimestamp": None}, "spec": {}, **body, "status": statuses[route.plural]}
