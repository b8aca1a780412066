"""Problems of files and documents: position, message and hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tf_dist.client.job_files import load_job_files, problem_text

SETTINGS = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"

# The content of a file, its only problem, and a part of the hint.
WRONG: dict[str, tuple[bytes, str, str]] = {
    "syntax": (
        b"a: 1\nb: [2\nc: 3\n",
        ":3: is not YAML: while parsing a flow sequence, did not find expected ',' or ']' (column 2)",
        "",
    ),
    "tab": (
        b"a:\n\tb: 1\n",
        ":2: is not YAML: while scanning for the next token, found character that cannot start any token (column 1)",
        "indent with spaces",
    ),
    "a fence": (b"```yaml\nkind: TFJob\n```\n", ":1: is not YAML: ```yaml", "copy only the YAML"),
    "a script": (
        b"$ cat <<EOF | kubectl apply -f -\nkind: TFJob\nEOF\n",
        ":1: is not YAML: $ cat <<EOF | kubectl apply -f -",
        "copy only the YAML",
    ),
    "a conflict": (
        b"kind: TFJob\n<<<<<<< HEAD\nspec:\n=======\nspec: {}\n>>>>>>> other\n",
        ":2: is not YAML: <<<<<<< HEAD",
        "resolve the conflict of Git",
    ),
    "no-break spaces": (
        "spec:\n\u00a0\u00a0a: 1\n\u00a0 - b\n".encode(),
        ":3: is not YAML: - b",
        "these are no-break spaces (U+00A0)",
    ),
    "a key of no-break spaces": (
        "kind: TFJob\nmetadata:\n  \u00a0\u200bname: a\n".encode(),
        ":3: metadata.name: the key contains invisible characters",
        "remove U+00A0, U+200B, and indent with spaces",
    ),
    "a here document": (b"cat <<EOF >a\nkind: TFJob\nEOF\n", ":1: is not YAML: cat <<EOF >a", "copy only the YAML"),
    "a difference": (b"spec:\n+  a: 1\n+  b: 2\n  c: 3\n", ":3: is not YAML: +  b: 2", "copy only the YAML"),
    "Markdown": (
        b"spec:\n  list:\n  \\- name: a\n\n    image: b\n",
        ":3: is not YAML: \\- name: a",
        "copy only the YAML",
    ),
    "a script in a text": (
        b"a: |\n  cat <<EOF\nb: [\n",
        ":4: is not YAML: while parsing a flow node, did not find expected node content (column 1)",
        "",
    ),
    "empty": (b"", ": contains no document", "a job starts with apiVersion: kubeflow.org/v1"),
    "only separators": (b"---\n---\n# nothing\n", ": contains no document", ""),
    "a list": (b"- 1\n", ":1: a job is a mapping with apiVersion, kind, metadata and spec, not a list", "one by one"),
    "a word": (
        b"hello\n",
        ":1: a job is a mapping with apiVersion, kind, metadata and spec, not the text 'hello'",
        "known: kubeflow.org/v1 TFJob",
    ),
    "not UTF-8": (b"a: b\nc: \xff\n", ":2: is not text in UTF-8 (byte 8)", "save it as UTF-8"),
    "a zero byte": (b"a: \x00\n", ":1: is not YAML: control characters are not allowed", "remove U+0000"),
    "a bell": (
        "a: 1\nü: ö\nb: \x07\n".encode(),
        ":3: is not YAML: control characters are not allowed",
        "remove U+0007",
    ),
    "a number without end": (
        b"a: b\nspec: [1, " + b"9" * 5000 + b"]\n",
        ":2: spec[1]: is not a number that can be read",
        "write it as text",
    ),
    "a number beyond all": (b"a: 1e400\n", ":1: a: is not a number that can be read", "write it as text"),
    "no number": (b"a: !!int x\n", ":1: a: is not a number that can be read", "write it as text"),
    "no boolean": (b"a: {b: !!bool x}\n", ":1: a.b: is neither true nor false", "leave out !!bool"),
    "twice": (b"kind: TFJob\nspec: {}\nkind: TFJob\n", ":3: kind: appears twice: on line 1 too", "keep one of them"),
    "a tag": (b"a: !Ref x\n", ":1: has a value that no cluster understands: the tag '!Ref' (column 4)", "quote it"),
    "a number as key": (b"a: {1: x}\n", ":1: a.1: the key 1 is not text", 'write "1"'),
    "a list as key": (b"? [1]\n: x\n", ":1: a key must be text, not a list or a mapping", ""),
    "a bomb": (
        b"a: &a [x,x,x,x,x,x,x,x,x,x]\n"
        + b"".join(b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 10)) for i in range(9)),
        ":1: expands to more than a million values: its aliases (*name) repeat each other",
        "use fewer aliases",
    ),
    "itself": (b"a: &a [*a]\n", ":1: is nested more than a hundred deep", "an alias (*name) may contain itself"),
    "deep": (b"[" * 100_000 + b"]" * 100_000, ": is nested too deeply to be read", ""),
    "101 deep": (b"[" * 101 + b"]" * 101, ":1: is nested more than a hundred deep", ""),
    "100 deep": (
        b"[" * 100 + b"]" * 100,
        ":1: a job is a mapping with apiVersion, kind, metadata and spec, not a list",
        "",
    ),
    "10 MB": (
        b"a: " + b"x" * 10_000_000,
        ": is 9.5 MiB large; no more than 3 MiB are read, because an API server accepts no more",
        "keep data in volumes",
    ),
    "unknown kind": (
        b"apiVersion: kubeflow.org/v1\nkind: TFJbo\nmetadata: {name: a}\n",
        ":2: kind: unknown kind 'TFJbo'",
        "did you mean TFJob?",
    ),
    "unknown version": (
        b"apiVersion: kubeflow.org/v3\nkind: TFJob\n",
        ":1: apiVersion: unknown version 'kubeflow.org/v3'",
        "did you mean kubeflow.org/v1?",
    ),
    "a queue below one that is not there": (
        b"apiVersion: tf-dist.dev/v1alpha1\nkind: Queue\nmetadata: {name: a}\nspec: {parent: team}\n",
        ":4: spec.parent: team is not in these files; if the cluster has none either, it has no quotas",
        "define it: kind: Queue, metadata.name: team",
    ),
    "a companion without a name": (
        b"apiVersion: v1\nkind: ConfigMap\n",
        ":1: metadata.name: is missing",
        "lower-case letters",
    ),
    "a companion of another version": (
        b"apiVersion: v2\nkind: Secret\nmetadata: {name: a}\n",
        ":1: apiVersion: a Secret is of apiVersion v1, not 'v2'",
        "",
    ),
    "a companion whose data is a list": (
        SETTINGS + b"data: [x]\n",
        ":4: data: must be a mapping (key: value), not a list",
        "",
    ),
    "a companion whose data is a number": (
        b"apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData:\n  a: b\n  rate: 0.10\n",
        ":6: stringData.rate: must be text, not a number",
        "write it in quotes",
    ),
    "a companion in no namespace": (
        b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: 3}\n",
        ":3: metadata.namespace: must be text, not a number",
        "write it in quotes",
    ),
    "a companion without a spec": (
        b"apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: a}\nspec: 3\n",
        ":4: spec: must be a mapping (key: value), not a number",
        "",
    ),
    "a service with a port that is none": (
        b"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  ports: [{port: 80}, x]\n",
        ":5: spec.ports[1]: must be a mapping (key: value), not text",
        "",
    ),
    "a service without ports": (
        b"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  ports: 80\n",
        ":5: spec.ports: must be a list, not a number",
        "",
    ),
    "a service whose port has no number": (
        b"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  ports: [{name: web, port: '80'}]\n",
        ":5: spec.ports[0].port: must be a number, not text",
        "",
    ),
    "a secret that is not encoded": (
        b"apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata:\n  token: my token\n",
        ":5: data.token: is not base64",
        "write the text itself under stringData",
    ),
    "a List without items": (
        b"apiVersion: v1\nkind: List\nitems: []\n",
        ":1: items: is empty: this List holds no objects",
        "",
    ),
    "a List whose items are none": (
        b"apiVersion: v1\nkind: List\nitems: {a: 1}\n",
        ":1: items: must be a list (- item)",
        "",
    ),
    "a companion twice": (
        SETTINGS + b"---\n" + SETTINGS,
        ":7: document 2: metadata.name: ConfigMap a appears twice: in job.yaml, document 1 too",
        "give one of them another name",
    ),
}


@pytest.mark.parametrize(("content", "told", "hint"), WRONG.values(), ids=WRONG.keys())
def test_problem_has_line_message_and_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, told: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_bytes(content)
    found = load_job_files(["job.yaml"])
    assert [problem_text(one) for one in found.problems] == [f"job.yaml{told}"]
    assert hint in found.problems[0].problem.hint


def test_secret_accepts_base64_with_line_breaks(tmp_path: Path) -> None:
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata:\n  token: |\n    bXkg\n    dG9rZW4=\n"
    (tmp_path / "job.yaml").write_text(secret)
    assert not load_job_files([str(tmp_path / "job.yaml")]).problems


def test_object_without_namespace_is_in_default_namespace() -> None:
    named = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
    texts = {"a": named, "b": named.replace("name: a", "name: a, namespace: default")}
    found = load_job_files(["a", "b"], texts=texts)
    assert [problem_text(one) for one in found.problems] == ["b:3: metadata.name: ConfigMap a appears twice: in a too"]
    other = {**texts, "b": texts["b"].replace("namespace: default", "namespace: other")}
    assert load_job_files(["a", "b"], texts=other).problems == ()


@pytest.mark.parametrize("accepted", [True, False])
def test_volcano_queue_is_accepted_only_on_request(accepted: bool) -> None:
    queue = "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: a}\nspec: {weight: 1}\n"
    found = load_job_files(["a", "b"], texts={"a": queue, "b": SETTINGS.decode()}, volcano_queues=accepted)
    assert len(found.volcano_queues) == accepted
    assert bool(found.errors) is not accepted
    assert [one.content["kind"] for one in found.companions] == ["ConfigMap"]
