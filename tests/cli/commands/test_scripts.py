"""Scripts instead of job files in ``run``, ``submit`` and ``init``, with real processes and without TensorFlow."""

from __future__ import annotations

import json
import os
import sys

import pytest
import yaml

from tests.cli.conftest import Program

SCRIPT = """\
import json, os, sys
task = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
print(task, sys.argv[1:], os.getcwd(), os.environ.get("RATE"), os.environ.get("WORD"), os.environ.get("MORE"))
import helper
"""


@pytest.fixture
def project(tf_dist: Program) -> Program:
    folder = tf_dist.folder / "project"
    folder.mkdir()
    (folder / "My_train.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("print('helped')")
    return tf_dist


def test_runs_script_with_its_folder_arguments_and_variables(project: Program) -> None:
    project.write("settings.env", "# rates\nRATE=0.5\n\nWORD=file\n")
    found = project(
        "run", "project/My_train.py", "--workers", "2", "--chief", "--evaluator",
        "--env-file", "settings.env", "--env", "WORD", "-e", "MORE=a $(b) $$", "--", "--epochs", "3",
        WORD="shell",
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, ""), found.stdout
    said = f"['--epochs', '3'] {project.folder}/project 0.5 shell a $(b) $$"
    assert f"chief-0     | chief {said}\n" in found.stdout
    assert "chief-0     | helped\n" in found.stdout
    assert project.leftovers() == []


def test_arguments_reach_script_unchanged(project: Program) -> None:
    name = "-$(RATE)$$.py"
    (project.folder / name).write_text("import sys; print(sys.argv)")
    words = ["$(RATE)", "$$", "", "a b", "-x"]
    found = project("run", "--env", "RATE=1", "--", name, *words)
    assert f"worker-0 | {['./' + name, *words]}\n" in found.stdout, found.stderr


def test_variables_of_shell_and_file_are_stored_in_secret(local: Program) -> None:
    (local.folder / "variables.py").write_text("import os; print(*(os.environ[name] for name in ('A', 'B', 'C', 'D')))")
    local.write("values.env", "# keys\nexport A='s3cret a'\nB=\"$(A) $$\"\r\nC = s3cret=c\n")
    options = ("--env-file", "values.env", "--env", "D")
    printed = local("submit", "variables.py", "--dry-run", *options, D="s3cret d")
    assert "s3cret" not in printed.stdout
    assert "kubectl create secret generic variables-env-" in printed.stderr
    found = local("submit", "variables.py", "--local", "--wait", *options, D="s3cret d")
    assert found.returncode == 0, found.stderr
    assert "s3cret a $(A) $$ s3cret=c s3cret d" in local("logs", "variables", "--local").stdout
    assert "s3cret" not in local("get", "variables", "--local", "-o", "yaml").stdout
    written = local("init", "variables.py", "-o", "-", *options, D="s3cret d").stdout
    assert "s3cret" not in written
    assert "tf-dist run job.yaml --env-file values.env --env D " in written


def test_runs_executable_script_in_code_folder(project: Program) -> None:
    script = project.folder / "project" / "start"
    script.write_text('#!/bin/sh\necho "$PWD $1"\n')
    script.chmod(0o755)
    found = project("run", "project/start", "--code", ".", "--", "go")
    assert f"worker-0 | {project.folder} go\n" in found.stdout, found.stderr


def test_warns_if_python_is_not_from_active_environment(project: Program) -> None:
    found = project("run", "project/My_train.py", VIRTUAL_ENV="/home/me/env")
    assert f"Python of tf-dist, {sys.executable}, and not with that of /home/me/env" in found.stderr
    assert project("run", "project/My_train.py", VIRTUAL_ENV=sys.prefix).stderr == ""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("s = tf.distribute.MultiWorkerMirroredStrategy(); m.fit(x)", "model.fit with MultiWorkerMirroredStrategy"),
        ("s = tf.distribute.ParameterServerStrategy(r); m.fit(x)", "model.fit with ParameterServerStrategy"),
        ("tf.layers.dense(x, 1)", "use tf.layers, which Keras 3"),
        ("s = tf.distribute.MultiWorkerMirroredStrategy(); loop()", ""),
        ("m.fit(x)", ""),
    ],
)
def test_warns_about_code_that_keras_3_does_not_support(project: Program, text: str, told: str) -> None:
    installed = project.folder / "site" / "keras-3.9.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: keras\nVersion: 3.9.0\n")
    (project.folder / "fit.py").write_text(f"def unused():\n    {text}\n")
    path = f"{installed.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    warned = project("run", "fit.py", PYTHONPATH=path).stderr
    assert told in warned
    assert ("TF_USE_LEGACY_KERAS=1" in warned) is bool(told)
    assert project("run", "fit.py", "--env", "TF_USE_LEGACY_KERAS=1", PYTHONPATH=path).stderr == ""


def test_dry_run_prints_job(project: Program) -> None:
    found = project(
        "run", "project/My_train.py", "--dry-run", "--workers", "3", "--ps", "1", "--gpus", "2", "--queue", "research",
        "--image", "registry/mine:1", "--name", "first", "--set", "spec.runPolicy.backoffLimit=2", "--", "--lr=1",
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    job = yaml.safe_load(found.stdout)
    specs = job["spec"]["tfReplicaSpecs"]
    containers = {name: spec["template"]["spec"]["containers"][0] for name, spec in specs.items()}
    assert job["metadata"]["name"] == "first"
    assert {name: spec["replicas"] for name, spec in specs.items()} == {"PS": 1, "Worker": 3}
    assert {one["image"] for one in containers.values()} == {"registry/mine:1"}
    assert containers["Worker"]["command"] == ["python3", "-u", "My_train.py"]
    assert containers["Worker"]["args"] == ["--lr=1"]
    assert containers["Worker"]["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert "resources" not in containers["PS"]
    assert job["spec"]["runPolicy"]["schedulingPolicy"]["queue"] == "research"
    assert job["spec"]["runPolicy"]["backoffLimit"] == 2
    again = project("run", "project/My_train.py", "--dry-run")
    assert yaml.safe_load(again.stdout)["metadata"]["name"] == "my-train"


@pytest.mark.parametrize(
    ("arguments", "told", "hint"),
    [
        (["run", "project/My_train.py", "--epochs", "3"], "No such option: --epochs", "My_train.py -- --epochs"),
        (["submit", "project/My_train.py", "--epochs=3"], "No such option: --epochs", "My_train.py -- --epochs"),
        (["run", "nothing.py"], "FILE: there is no file", "check its path"),
        (["run", "project/My_train.py", "--workers", "0"], "--workers: 0 leaves no replica", "add --chief"),
        (["run", "project/My_train.py", "--env", "NOWHERE"], "--env: NOWHERE is not set", "export NOWHERE=VALUE"),
        (["run", "project/My_train.py", "--env", "=1"], "--env: '' is not the name", "NAME=VALUE"),
        (["run", "project/My_train.py", "--env-file", "none"], "--env-file: none cannot be read", "NAME=VALUE"),
        (
            ["run", "project/My_train.py", "--env-file", "wrong.env"],
            "--env-file: wrong.env, line 3, is not",
            "NAME=VALUE",
        ),
        (["run", "project/My_train.py", "--worker", "2"], "Did you mean --workers?", "My_train.py -- --worker"),
        (["run", "project/plain.sh"], "FILE: project/plain.sh is not executable", "chmod +x project/plain.sh"),
        (["run", "project/no-line.sh"], "FILE: project/no-line.sh has no #! line", "#!/bin/sh"),
        (["run", "project/book.ipynb"], "FILE: project/book.ipynb is a notebook", "jupyter nbconvert --to script"),
        (["run", "https://a.example/b.py"], "FILE: https://a.example/b.py is an address", "download it"),
        (["submit", "s3://a/b.yaml"], "s3://a/b.yaml: is an address, and only files", "download it"),
        (["run", "/bin/sh"], "/bin/sh: is a binary file", "name a YAML file with a job"),
        (["run", "project"], "FILE: project is a folder", "name the script or the job file in it"),
        (["run", b"project/bad\xff.py"], "FILE: the name of project/bad\\udcff.py is not UTF-8", "rename"),
        (["run", "project/My_train.py", "--", b"a\xff"], "args[0]: is not text in UTF-8", "write it in UTF-8"),
        (["submit", "job.yaml", "--dry-run", "--env", b"A=\xff"], "value: is not text in UTF-8", "write it in UTF-8"),
        (["init", "project/My_train.py", "-o", "new.yaml", "--", b"\xff"], "args[0]: is not text in UTF-8", "UTF-8"),
        (["workflows", "export", "new", "--job-image", b"\xff"], "--job-image: '\\udcff' is not one line", "write"),
        (["plan", "project/My_train.py"], "My_train.py: is a Python program, not a job file", "tf-dist init project/"),
        (["run", "project/My_train.py", "--code", "other"], "--code: ", "has the script in it"),
        (["run", "project/My_train.py", "--name", "A b"], "--name: 'A b' is not a name", "a-z"),
        (["run", "project/My_train.py", "--image", "a b"], "--image: 'a b' has a space", "one word"),
        (["run", "job.yaml", "--gpus", "1"], "--gpus: is for a script, and job.yaml is a job file", "--set"),
        (["run", "job.yaml", "--chief", "--", "x"], "-- ARGS: is for a script", "--set"),
        (["run", "job.yaml", "--code", "missing"], "code: ", "name the folder"),
        (["run", "job.yaml", "--ps", "1"], "and the job has none: Worker", ""),
        (["submit", "job.yaml", "project/My_train.py"], "FILE: project/My_train.py is a script", "another command"),
        (["submit", "job.yaml", "job.yaml", "--name", "a"], "--name: is for one job", "alone"),
    ],
)
def test_invalid_arguments_are_explained_with_hint(
    project: Program, arguments: list[str | bytes], told: str, hint: str
) -> None:
    (project.folder / "other").mkdir()
    project.write("job.yaml", project.job())
    project.write("wrong.env", "A=1\n\nc2VjcmV0\n")
    for name, text in (
        ("plain.sh", "#!/bin/sh\n"),
        ("no-line.sh", "echo hi\n"),
        ("book.ipynb", "{}"),
        (b"bad\xff.py", ""),
    ):
        path = project.folder / "project" / os.fsdecode(name)
        path.write_text(text)
        path.chmod(0o755 if name == "no-line.sh" else 0o644)
    found = project(*map(os.fsdecode, arguments))
    assert (found.returncode, found.stdout) == (2, "")
    assert not (project.folder / "new.yaml").exists()
    assert "c2VjcmV0" not in found.stderr, "a line of the file with variables may be a secret"
    assert told in found.stderr
    assert hint in found.stderr


def test_options_change_job_of_file(project: Program) -> None:
    job = project.job('echo "$RATE in $PWD"', workers=1)
    file = project.write("job.yaml", job)
    found = project("run", file, "--workers", "2", "--env", "RATE=1", "--code", "project", "--name", "other")
    assert found.returncode == 0, found.stderr
    # The first worker decides. The other worker may be stopped before it writes anything.
    assert f"worker-0 | 1 in {project.folder}/project\n" in found.stdout
    assert "all 2 replicas are admitted" in found.stdout
    assert "other: Succeeded" in found.stdout


def test_runs_job_file_with_code_annotation(project: Program) -> None:
    job = project.job('echo "in $PWD"')
    job["metadata"]["annotations"] = {"tf-dist.dev/code": "project"}
    found = project("run", project.write("job.yaml", job))
    assert f"worker-0 | in {project.folder}/project\n" in found.stdout, found.stderr


def test_submits_script_to_local_cluster(local: Program) -> None:
    (local.folder / "train.py").write_text("import os, sys; print('in', os.getcwd(), sys.argv[1])")
    found = local("submit", "train.py", "--local", "--wait", "--", "--epochs=1")
    assert found.returncode == 0, found.stderr
    assert f"in {local.folder} --epochs=1" in local("logs", "train", "--local").stdout
    stored = json.loads(local("get", "train", "--local", "-o", "json").stdout)
    assert "tf-dist.dev/code" not in stored["metadata"]["annotations"]


def test_replicas_unpack_submitted_code(project: Program) -> None:
    found = project("submit", "project/My_train.py", "--dry-run", "--workers", "2")
    assert found.returncode == 0, found.stderr
    job = [*yaml.safe_load_all(found.stdout)][-1]
    worker = job["spec"]["tfReplicaSpecs"]["Worker"]
    worker["template"]["spec"]["initContainers"][0]["securityContext"].pop("seccompProfile")  # unsupported here
    config_map = found.stdout.partition("\n---\n")[0]
    ran = project("run", project.write("packed.yaml", config_map, job))
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    assert "worker-0 | worker [] /tf-dist/code None None None\n" in ran.stdout
    assert "worker-0 | helped\n" in ran.stdout
    assert project.leftovers() == []


def test_reports_image_without_tar_and_python(project: Program) -> None:
    job = [*yaml.safe_load_all(project("submit", "project/My_train.py", "--dry-run").stdout)]
    pod = job[-1]["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["initContainers"][0]["env"] = [{"name": "PATH", "value": "/nothing"}]
    ran = project("run", project.write("packed.yaml", *job))
    assert ran.returncode == 1
    assert "the image has neither tar with gzip nor python3" in ran.stdout, ran.stdout


def test_init_writes_same_job_as_run(project: Program) -> None:
    options = (
        "--workers", "2", "--ps", "1", "--chief", "--evaluator", "--gpus", "1", "--image", "registry/mine:1",
        "--env", "RATE=a: {b}", "--queue", "research", "--name", "first",
        "--package", "rich>=13", "--package", "pyyaml", "--", "--note", "two words: ü",
    )  # fmt: skip
    found = project("init", "project/My_train.py", "-o", "first.yaml", *options)
    assert (found.returncode, found.stdout) == (0, "first.yaml written; run it with: tf-dist run first.yaml\n")
    text = (project.folder / "first.yaml").read_text()
    assert text.count("registry/mine:1") == 2, "the container is not repeated for each role"
    made = yaml.safe_load(project("run", "project/My_train.py", "--dry-run", *options).stdout)
    written = yaml.safe_load(text)
    assert written["metadata"]["annotations"].pop("tf-dist.dev/code") == "project"
    assert made["metadata"]["annotations"].pop("tf-dist.dev/code") == f"{project.folder}/project"
    assert written["metadata"]["annotations"] == {"tf-dist.dev/packages": "rich>=13 pyyaml"}
    assert written == made
    assert project("validate", "first.yaml").returncode == 0
    assert (
        project("init", "project/My_train.py", "-o", "-", *options).stdout.partition("apiVersion")[2]
        == (text.partition("apiVersion")[2])
    )


def test_init_job_runs_and_existing_file_is_not_overwritten(project: Program) -> None:
    assert project("init", "project/My_train.py", "--workers", "2").returncode == 0
    found = project("run", "job.yaml")
    assert f"worker-0 | worker [] {project.folder}/project" in found.stdout, found.stderr
    again = project("init", "project/My_train.py")
    assert (again.returncode, again.stdout) == (2, "")
    assert "--output: job.yaml already exists" in again.stderr
    named = os.fsdecode(b"bad\xff.yaml")
    assert project("init", "project/My_train.py", "-o", named).returncode == 0
    assert project("validate", named).returncode == 0
