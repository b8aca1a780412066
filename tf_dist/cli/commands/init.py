"""``tf-dist init``: writes the job of a script as a file that users edit."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tf_dist.cli import output, scripts


def init(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python program, or an executable file.")],
    program: scripts.Program = None,
    workers: scripts.Workers = None,
    ps: scripts.Ps = None,
    chief: scripts.Chief = False,
    evaluator: scripts.Evaluator = False,
    gpus: scripts.Gpus = 0,
    image: scripts.Image = "",
    env: scripts.Env = None,
    env_file: scripts.EnvFile = None,
    code: scripts.Code = "",
    queue: scripts.Queue = "",
    name: scripts.Name = "",
    package: scripts.Package = None,
    file: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The file to write; - prints the job.")
    ] = "job.yaml",
) -> None:
    """Write the job of a script as a commented file, with the options of tf-dist run.

    The file is a TFJob v1, for tf-dist run and submit. Nothing is started. Variables of this shell and of files are not
    written. The commands in the first lines of the file read them again.
    """
    from tf_dist.client.job_files import load_documents, require_valid
    from tf_dist.client.yaml_files import YamlDocument
    from tf_dist.errors import InvalidJob, Problem

    arguments = scripts.JobArguments(
        program=program or (),
        workers=workers,
        ps=ps,
        chief=chief,
        evaluator=evaluator,
        gpus=gpus,
        image=image,
        env=env or (),
        env_files=env_file or (),
        code=code,
        queue=queue,
        name=name,
        packages=package or (),
    )
    beside = Path.cwd() if file == "-" else Path(file).absolute().parent
    folder = os.path.relpath(code or Path(script).parent, beside)
    shown, hidden = arguments.variables()
    job = arguments.of_script(script, code or str(Path(script).parent), shown).replace(code=folder)
    require_valid(load_documents([YamlDocument(script, None, job.to_dict(), None)]))
    later = [word for one in env_file or () for word in ("--env-file", one)]
    later += [word for one in env or () if one in hidden for word in ("--env", one)]
    run = shlex.join(["tf-dist", "run", "job.yaml" if file == "-" else file, *later])
    text = "".join(f"{line}\n" for line in _lines(job.to_dict(), run))
    if file == "-":
        output.line(text.rstrip("\n"))
        return
    try:
        with open(file, "x", encoding="utf-8", errors="backslashreplace") as opened:  # a comment names the file
            opened.write(text)
    except FileExistsError:
        hint = "name another one: -o FILE; or print it: -o -"
        raise InvalidJob([Problem("--output", f"{file} already exists", hint)]) from None
    except OSError as error:
        what = f"{file} cannot be written: {error.strerror}"
        raise InvalidJob([Problem("--output", what, "name another one: -o FILE")]) from None
    output.line(f"{file} written; run it with: {run}")


_RESTARTS: Final = {
    "OnFailure": "a parameter server is restarted after every failure",
    "ExitCode": "exit codes from 128 (killed, evicted) restart it; others fail the job",
}


def _lines(job: Mapping[str, Any], run: str) -> Iterator[str]:
    """The document with comments. A repeated pod template is written once, and then referenced.

    ``run``: the command that runs the file.
    """
    metadata, spec = job["metadata"], job["spec"]
    (annotation, folder), *packages = metadata["annotations"].items()
    submit = f"{run.replace('run', 'submit', 1)} --context NAME"
    for command, about in (
        (run, "on this machine"),
        (f"{run} --context NAME", "on a cluster, until the job has ended"),
        (submit, "the same, without waiting"),
    ):
        yield f"# {command:<{len(submit)}}  {about}"
    yield f"apiVersion: {job['apiVersion']}"
    yield f"kind: {job['kind']}"
    yield "metadata:"
    yield f"  name: {metadata['name']}"
    yield "  annotations:"
    yield "    # The folder that is sent with the job, relative to this file. tf-dist, Airflow and Argo send it when"
    yield "    # they submit the job. kubectl does not: for kubectl, put the code into the image."
    yield f"    {annotation}: {json.dumps(folder)}"
    for annotation, listed in packages:
        yield "    # Packages that the image does not have; each pod installs them when it starts."
        yield f"    {annotation}: {json.dumps(listed)}"
    yield "spec:"
    yield "  runPolicy:"
    yield "    cleanPodPolicy: Running  # when the chief (without one, worker 0) has ended, the others are stopped"
    if scheduling := spec["runPolicy"].get("schedulingPolicy"):
        yield f"    schedulingPolicy: {json.dumps(scheduling)}"
    yield "  tfReplicaSpecs:"
    anchors: dict[str, str] = {}
    for kind, replicas in spec["tfReplicaSpecs"].items():
        yield f"    {kind}:"
        yield f"      replicas: {replicas['replicas']}"
        yield f"      restartPolicy: {replicas['restartPolicy']}  # {_RESTARTS[replicas['restartPolicy']]}"
        template = replicas["template"]
        key = json.dumps(template)
        if key in anchors:
            yield f"      template: *{anchors[key]}"
            continue
        anchors[key] = "replica" if not anchors else f"{kind.lower()}-replica"
        (container,) = template["spec"]["containers"]
        yield f"      template: &{anchors[key]}"
        yield "        spec:"
        yield "          containers:"
        yield f"            - name: {container['name']}"
        yield f"              image: {container['image']}  # not used on this machine, which has no images"
        for field in ("command", "args", "env", "resources"):
            if field not in container:
                continue
            value = container[field]
            if isinstance(value, list) and field == "env":
                yield "              env:"
                yield from (f"                - {json.dumps(one, ensure_ascii=False)}" for one in value)
            else:
                yield f"              {field}: {json.dumps(value, ensure_ascii=False)}"
