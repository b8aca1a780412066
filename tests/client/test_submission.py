"""Companions of a job are created and updated only by their own job. Objects of others are never written."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.client.companions import CLAIM, config, put, secret, word_of
from tests.controller.harness import tfjob
from tf_dist import Client, InvalidJob, TFJob
from tf_dist.client.connection import Connection
from tf_dist.client.job_files import LoadedJob, load_job_files, one_job
from tf_dist.client.submission import (
    COMPANION_OWNER,
    WORKDIR,
    companion_owner,
    create_companion,
    create_job,
    submitted_documents,
)
from tf_dist.client.yaml_files import YamlDocument
from tf_dist.cluster.api import (
    CONFIG_MAPS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    QUEUES,
    SECRETS,
    TFJOBS,
    Object,
    ObjectList,
    Resource,
)
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.core.model.names import EMULATED, PACKAGES
from tf_dist.errors import AlreadyExists, Conflict, Forbidden, NotFound


def stored(cluster: MemoryCluster, resource: Resource = CONFIG_MAPS) -> Object:
    return cluster.get(resource, "default", "settings")


@pytest.fixture(params=[(config, CONFIG_MAPS), (secret, SECRETS)], ids=["ConfigMap", "Secret"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_companion_is_created_and_updated_by_its_job(kind: Any) -> None:
    body, resource = kind
    with MemoryCluster() as cluster:
        assert put(cluster, body()) == "created"
        before = stored(cluster, resource)
        assert before["metadata"]["annotations"][COMPANION_OWNER] == "digits"
        assert put(cluster, body()) == "unchanged"
        assert stored(cluster, resource) == before
        assert put(cluster, body("bye")) == "configured"
        assert word_of(stored(cluster, resource)) == "bye"
        assert put(cluster, {**body("bye"), "immutable": True}) == "configured"


def test_key_removed_from_file_is_deleted(kind: Any) -> None:
    body, resource = kind
    with MemoryCluster() as cluster:
        put(cluster, body())
        key = "data" if resource is CONFIG_MAPS else "stringData"
        assert put(cluster, {**body(), key: {"other": "x"}}) == "configured"
        assert list(stored(cluster, resource)["data"]) == ["other"]


OTHERS: list[Object] = [{}, {"annotations": {"team": "vision"}}, {"annotations": {COMPANION_OWNER: "another"}}]


@pytest.mark.parametrize("metadata", OTHERS)
def test_companion_of_other_owner_is_not_overwritten(kind: Any, metadata: Object) -> None:
    body, resource = kind
    with MemoryCluster() as cluster:
        theirs = body("theirs")
        cluster.create(resource, "default", {**theirs, "metadata": {"name": "settings", **metadata}})
        before = stored(cluster, resource)
        with pytest.raises(AlreadyExists, match=f"{theirs['kind']} settings in namespace default") as caught:
            put(cluster, body("ours"))
        assert "metadata.name" in caught.value.hint
        assert (
            f"kubectl annotate -n default {theirs['kind'].lower()}/settings --overwrite {COMPANION_OWNER}=digits"
            in caught.value.hint
        )
        assert stored(cluster, resource) == before


def test_equal_companion_of_other_owner_is_used(kind: Any) -> None:
    body, resource = kind
    with MemoryCluster() as cluster:
        cluster.create(resource, "default", {**body(), "metadata": {"name": "settings"}})
        before = stored(cluster, resource)
        assert put(cluster, body()) == "unchanged"
        assert stored(cluster, resource) == before


def test_matching_claim_is_used_and_different_claim_rejected() -> None:
    body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "settings"}, "spec": CLAIM}
    with MemoryCluster() as cluster:
        cluster.create(PERSISTENT_VOLUME_CLAIMS, "default", {**body, "spec": {**CLAIM, "volumeName": "v"}})
        assert put(cluster, body) == "unchanged"
        with pytest.raises(AlreadyExists):
            put(cluster, {**body, "spec": {**CLAIM, "accessModes": ["ReadWriteOnce"]}})


def test_owner_annotation_transfers_ownership(kind: Any) -> None:
    body, resource = kind
    with MemoryCluster() as cluster:
        cluster.create(resource, "default", body("theirs"))
        cluster.patch(resource, "default", "settings", {"metadata": {"annotations": {COMPANION_OWNER: "digits"}}})
        assert put(cluster, body("ours")) == "configured"


def test_owner_annotation_in_file_is_ignored(kind: Any) -> None:
    body, _ = kind
    with MemoryCluster() as cluster:
        put(cluster, body("theirs"), owner="another")
        with pytest.raises(AlreadyExists):
            put(
                cluster, {**body("ours"), "metadata": {"name": "settings", "annotations": {COMPANION_OWNER: "another"}}}
            )


class Between:
    """A cluster where something happens between a read and the following write, ``times`` times."""

    def __init__(self, inner: MemoryCluster, happens: Any, times: int = 1) -> None:
        self._inner, self._happens, self._left = inner, happens, times

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._inner, verb)

    def get(self, *where: Any) -> Object:
        found = self._inner.get(*where)
        if self._left:
            self._left -= 1
            self._happens(self._inner)
        return found


def test_companion_replaced_before_write_is_not_overwritten(kind: Any) -> None:
    body, resource = kind

    def taken(cluster: MemoryCluster) -> None:
        cluster.delete(resource, "default", "settings")
        put(cluster, body("theirs"), owner="another")

    with MemoryCluster() as cluster:
        put(cluster, body())
        with pytest.raises(AlreadyExists):
            put(Between(cluster, taken), body("ours"))
        assert word_of(stored(cluster, resource)) == "theirs"


def test_companion_deleted_before_write_is_created_again(kind: Any) -> None:
    body, resource = kind
    with MemoryCluster() as cluster:
        put(cluster, body())
        gone = Between(cluster, lambda inner: inner.delete(resource, "default", "settings"))
        assert put(gone, body("ours")) == "created"


def test_companion_that_keeps_changing_raises_conflict(kind: Any) -> None:
    body, resource = kind
    count = iter(range(1000))

    def changed(cluster: MemoryCluster) -> None:
        cluster.patch(resource, "default", "settings", {"metadata": {"labels": {"count": str(next(count))}}})

    with MemoryCluster() as cluster:
        put(cluster, body())
        with pytest.raises(Conflict, match="keeps changing"):
            put(Between(cluster, changed, times=1000), body("ours"))


def test_concurrent_submits_create_companion_once(kind: Any) -> None:
    body, resource = kind
    barrier, said = threading.Barrier(8), []

    def submit(number: int) -> None:
        barrier.wait()
        said.append(
            put(cluster, {**body(f"{number}"), "metadata": {"name": "settings", "labels": {"by": f"n{number}"}}})
        )

    with MemoryCluster() as cluster:
        threads = [threading.Thread(target=submit, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(said) == ["configured"] * 7 + ["created"]
        found = stored(cluster, resource)
        assert found["metadata"]["labels"] == {"by": f"n{word_of(found)}"}  # both are from the same submit


def test_queue_has_no_owner() -> None:
    queue = {"apiVersion": "tf-dist.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "q"}, "spec": {"weight": 1}}
    with MemoryCluster() as cluster:
        assert put(cluster, queue) == "created"
        assert put(cluster, {**queue, "spec": {"weight": 2}}, owner="another") == "configured"
        assert cluster.get(QUEUES, None, "q")["spec"]["weight"] == 2


def entry(file: str, name: str, **annotations: str) -> LoadedJob:
    document = tfjob(name)
    document["metadata"]["annotations"] = annotations
    [found] = load_job_files([file], texts={file: json.dumps(document)}).jobs
    return found


def test_missing_namespace_suggests_creation() -> None:
    with MemoryCluster() as cluster:
        with pytest.raises(NotFound) as companion:
            create_companion(cluster, YamlDocument("f", None, config(), None), "nowhere", owner="digits")
        with pytest.raises(NotFound) as job:
            create_job(cluster, entry("a.yaml", "mnist"), "nowhere", workdir="")
    assert companion.value.hint == job.value.hint == "kubectl create namespace nowhere"


def test_folder_of_file_is_added_to_annotations() -> None:
    with MemoryCluster() as cluster:
        found = create_job(cluster, entry("a.yaml", "mnist", team="vision"), "default", workdir="/w").stored
    assert found["metadata"]["annotations"] == {"team": "vision", WORKDIR: "/w"}


@pytest.mark.parametrize(
    ("jobs", "owner"),
    [
        ([("a.yaml", "first"), ("b.yaml", "second"), ("b.yaml", "third")], "second"),
        ([("a.yaml", "first"), ("c.yaml", "second")], "first"),
        ([], "b.yaml"),
    ],
)
def test_companion_owner_is_job_of_its_file(jobs: list[tuple[str, str]], owner: str) -> None:
    files = [(f"/jobs/{file}", name) for file, name in jobs]
    assert companion_owner(YamlDocument("/jobs/b.yaml", None, config(), None), [entry(*one) for one in files]) == owner


CODE_JOB = TFJob("mnist", image="tf", command=["python", "train.py"], workers=2)


def create_with_code(cluster: Any, folder: Path) -> Object:
    return create_job(cluster, one_job(CODE_JOB.replace(code=folder).files()), "default", workdir="").stored


def test_code_is_stored_in_config_maps_owned_by_job(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    with MemoryCluster() as cluster:
        stored = create_with_code(cluster, tmp_path)
        (part,) = cluster.list(CONFIG_MAPS, "default").items
        (owner,) = part["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("TFJob", "mnist", stored["metadata"]["uid"])
        template = stored["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
        (source,) = template["volumes"][1]["projected"]["sources"]
        assert source["configMap"]["name"] == part["metadata"]["name"]
        assert "annotations" not in stored["metadata"]


def test_packages_are_installed_on_cluster_but_required_locally() -> None:
    job = CODE_JOB.replace(annotations={PACKAGES: "pytest>=8 absent-package==1"})
    with MemoryCluster() as cluster:
        spec = create_job(cluster, one_job(job.files()), "default", workdir="").stored["spec"]
        (init,) = spec["tfReplicaSpecs"]["Worker"]["template"]["spec"]["initContainers"]
        assert init["command"][-2:] == ["pytest>=8", "absent-package==1"]
        cluster.create(NODES, None, {"metadata": {"name": "local", "labels": {EMULATED: "true"}}})
        with pytest.raises(InvalidJob, match="absent-package==1 is not installed for ") as caught:
            create_job(cluster, one_job(job.replace(name="here").files()), "default", workdir="")
        assert [one.hint.endswith("-m pip install absent-package==1") for one in caught.value.problems] == [True]
        there = job.replace(name="there", annotations={PACKAGES: "pytest>=8"})
        create_job(cluster, one_job(there.files()), "default", workdir="")
        old = one_job(job.replace(name="old", annotations={PACKAGES: "pytest<8"}).files())
        with pytest.raises(InvalidJob, match="pytest<8 is not installed"):
            create_job(cluster, old, "default", workdir="")


def as_written_by_kubectl(stored: Object, name: str = "again") -> Any:
    """The job like from ``kubectl get -o yaml``, with another name."""
    document = {"apiVersion": TFJOBS.api_version, "kind": TFJOBS.kind, **stored}
    return one_job(load_job_files(["a"], texts={"a": yaml.safe_dump({**document, "metadata": {"name": name}})}))


def test_exported_job_with_code_copies_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    with MemoryCluster() as cluster:
        first = create_with_code(cluster, tmp_path)
        entry = as_written_by_kubectl(first)
        second = create_job(cluster, entry, "default", workdir="").stored
        parts = {
            one["metadata"]["ownerReferences"][0]["name"]: one for one in cluster.list(CONFIG_MAPS, "default").items
        }
        assert parts["again"]["binaryData"] == parts["mnist"]["binaryData"]
        pod = second["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
        (source,) = pod["volumes"][1]["projected"]["sources"]
        assert source["configMap"]["name"] == parts["again"]["metadata"]["name"]
        assert [len(pod[key]) for key in ("volumes", "initContainers")] == [2, 1]
        for one in parts.values():
            cluster.delete(CONFIG_MAPS, "default", one["metadata"]["name"])
        with pytest.raises(InvalidJob, match="was deleted with the job") as caught:
            create_job(cluster, as_written_by_kubectl(first, "late"), "default", workdir="")
        assert "--code DIR" in caught.value.problems[0].hint
        assert [one["metadata"]["name"] for one in cluster.list(TFJOBS, "default").items] == ["again", "mnist"]


def test_printed_job_uses_config_maps_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    documents = submitted_documents(CODE_JOB.replace(code=tmp_path).files(), packed=True)
    bundle = load_job_files(["a"], texts={"a": yaml.safe_dump_all(documents)})
    with MemoryCluster() as cluster:
        Client(connection=Connection(cluster, "default", "the test's")).submit_files(bundle)
        (part,) = cluster.list(CONFIG_MAPS, "default").items
        (job,) = cluster.list(TFJOBS, "default").items
        pod = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
        assert pod["volumes"][1]["projected"]["sources"][0]["configMap"]["name"] == part["metadata"]["name"]


def test_program_is_searched_in_relative_working_directory(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("train.py", "sub/train.py"):
        (tmp_path / name).write_text("")
    job = TFJob("a", image="x", command=["python", "train.py"], code=tmp_path, container={"workingDir": "sub"})
    (tmp_path / ".tfdistignore").write_text("/train.py\n")
    assert submitted_documents(job.files(), packed=True)
    (tmp_path / ".tfdistignore").write_text("/sub/train.py\n")
    with pytest.raises(InvalidJob, match=r"is sent without sub/train\.py"):
        submitted_documents(job.files(), packed=True)


def test_job_is_deleted_if_code_cannot_be_stored(tmp_path: Path) -> None:
    class Refusing(MemoryCluster):
        def create(self, resource: Resource, namespace: str | None, body: Object) -> Object:
            if resource is CONFIG_MAPS:
                raise Forbidden("configmaps is forbidden")
            return super().create(resource, namespace, body)

    (tmp_path / "train.py").write_text("print(1)")
    with Refusing() as cluster:
        with pytest.raises(Forbidden, match="configmaps is forbidden"):
            create_with_code(cluster, tmp_path)
        assert cluster.list(TFJOBS, "default").items == []


class NodesHidden(MemoryCluster):
    def list(self, resource: Resource, namespace: str | None = None, **query: Any) -> ObjectList:
        if resource is NODES:
            raise Forbidden("nodes is forbidden")
        return super().list(resource, namespace, **query)


@pytest.mark.parametrize(
    ("cluster", "nodes", "sent"),
    [
        pytest.param(MemoryCluster, [{EMULATED: "true"}], False, id="this machine"),
        pytest.param(MemoryCluster, [{"a": "b"}, {}], True, id="other nodes"),
        pytest.param(MemoryCluster, [], True, id="no nodes yet"),
        pytest.param(NodesHidden, [{EMULATED: "true"}], True, id="no right to list nodes"),
    ],
)
def test_code_is_sent_unless_pods_run_locally(
    cluster: type[MemoryCluster], nodes: list[dict[str, str]], sent: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    with cluster() as made:
        for number, labels in enumerate(nodes):
            made.create(NODES, None, {"metadata": {"name": f"n{number}", "labels": labels}})
        stored = create_with_code(made, tmp_path)
        (container,) = stored["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
        assert (container["workingDir"] == str(tmp_path)) is not sent
        assert len(made.list(CONFIG_MAPS, "default").items) == sent


def test_invalid_code_creates_nothing(tmp_path: Path) -> None:
    bundle = load_job_files(
        ["a"], texts={"a": yaml.safe_dump_all([config(), CODE_JOB.replace(code=tmp_path).to_dict()])}
    )
    with MemoryCluster() as cluster:
        with pytest.raises(InvalidJob, match="has no files to send"):
            Client(connection=Connection(cluster, "default", "the test's")).submit_files(bundle)
        assert cluster.list(CONFIG_MAPS, "default").items == []


def test_job_owns_its_secret() -> None:
    job = replace(one_job(CODE_JOB.files()), owned=(secret(),))
    with MemoryCluster() as cluster:
        stored = create_job(cluster, job, "default", workdir="").stored
        (found,) = cluster.list(SECRETS, "default").items
        assert [one["uid"] for one in found["metadata"]["ownerReferences"]] == [stored["metadata"]["uid"]]
