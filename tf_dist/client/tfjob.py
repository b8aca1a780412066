"""TFJob: a job as a Python value, from arguments or from a file of any format."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from tf_dist.core.model.fieldpath import mapping
from tf_dist.core.model.job import Dialect
from tf_dist.core.model.names import CODE, FALLBACK, MAX_WORKERS, MIN_WORKERS, PACKAGES
from tf_dist.core.pipeline.run_options import (
    Face,
    RunOptions,
    argument_problems,
    count_of,
    documented,
    is_template,
    options_of,
)
from tf_dist.errors import InvalidJob, Problem

if TYPE_CHECKING:
    from tf_dist.client.job_files import JobFiles
    from tf_dist.client.yaml_files import YamlDocument
    from tf_dist.core.model.job import Job

_CONTAINER: Final = "tensorflow"
_LONGEST_NAME: Final = 40  # characters of a name that is derived from another name
_CHANGES: Final = ("workers", "ps", "priority_class", "image", "command", "args", "env_vars", "resources", "packages")
_EVERYWHERE: Final[Mapping[str, Any]] = {"cleanPodPolicy": "Running"}

Resources = Mapping[str, str | float]
Environment = Mapping[str, str | Mapping[str, Any]]


class TFJob:
    """A job in Python: ``TFJob("mnist", image="…", command=[…], workers=4, ps=2)``. It is immutable.

    The arguments make a TFJob of ``kubeflow.org/v1`` whose replicas all run the same command. ``from_file``,
    ``from_yaml`` and ``from_dict`` read every format. InvalidJob lists all problems of the arguments. Problems of the
    whole document are reported when it is read: by ``job``, ``run`` and ``Client.submit``. Texts and numbers may be
    templates of a pipeline (``{{…}}``); lists, mappings and switches may not.

    :param name: The name of the job. A pipeline may name it instead.
    :param namespace: The namespace of the job, by default that of the client.
    :param queue_name: The queue of the gang.
    :param admission_timeout: Seconds, or ``10m``, without admission after which ``fallback`` is tried.
    :param chief: Whether the job has a replica of type Chief. Without one, worker 0 is the chief.
    :param evaluator: Whether the job has an evaluator.
    :param min_workers: The number of workers with which the job may start, or continue if others need capacity.
    :param max_workers: The number of workers that the job may have while capacity is free.
    :param enable_dynamic_worker: The program copes with changes of the number of workers. False: all replicas restart.
    :param resources: Requests of each replica: ``{"cpu": "2", "nvidia.com/gpu": 1}``. Devices are also limits.
    :param ps_resources: Requests of parameter servers, by default ``resources``.
    :param restart_policy: The restart policy of all replicas except parameter servers, which have ``OnFailure``.
    :param success_policy: ``AllWorkers``: the job succeeds when all workers have. By default, when the leader has.
    :param labels: The labels of the job.
    :param annotations: The annotations of the job.
    :param pod: More fields of the spec of every pod.
    :param container: More fields of every container.
    :param run_policy: More fields of ``spec.runPolicy``.
    """

    __slots__ = ("_companions", "_written")
    _written: YamlDocument
    _companions: tuple[YamlDocument, ...]

    def __init__(
        self,
        name: str = "",
        *,
        image: str,
        command: Sequence[str] = (),
        args: Sequence[str] = (),
        workers: int = 1,
        ps: int = 0,
        chief: bool = False,
        evaluator: bool = False,
        code: str | os.PathLike[str] = "",
        packages: Sequence[str] | None = None,
        env_vars: Environment | None = None,
        resources: Resources | None = None,
        ps_resources: Resources | None = None,
        queue_name: str = "",
        priority_class: str = "",
        min_workers: int | None = None,
        max_workers: int | None = None,
        enable_dynamic_worker: bool = False,
        restart_policy: str = "ExitCode",
        success_policy: str = "",
        fallback: Sequence[Mapping[str, Any]] | None = None,
        on_eviction: str | None = None,
        on_preemption: str | None = None,
        admission_timeout: float | str | None = None,
        namespace: str = "",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        pod: Mapping[str, Any] | None = None,
        container: Mapping[str, Any] | None = None,
        run_policy: Mapping[str, Any] | None = None,
    ) -> None:
        policies, wrong = _policies(fallback, on_eviction, on_preemption, admission_timeout)
        trained = {"image": image, "command": command, "args": args, "env_vars": env_vars, "packages": packages}
        counts = {"workers": workers, "ps": ps, "min_workers": min_workers, "max_workers": max_workers}
        texts = {"name": name, "namespace": namespace, "queue_name": queue_name, "priority_class": priority_class}
        texts |= {"restart_policy": restart_policy, "success_policy": success_policy, "code": _path(code)}
        switches = {"chief": chief, "evaluator": evaluator, "enable_dynamic_worker": enable_dynamic_worker}
        mappings = {"labels": labels, "annotations": annotations, "resources": resources, "ps_resources": ps_resources}
        mappings |= {"pod": pod, "container": container, "run_policy": run_policy}
        clashes = _clash_problems(pod, container, run_policy, {**trained, "resources": resources or ps_resources})
        missing = [] if image else [Problem("image", "is empty", "name the image that every replica runs")]
        _refuse({**trained, **counts, **texts, **switches, **mappings}, [*missing, *clashes, *wrong])
        workers, ps, min_workers, max_workers = map(count_of, counts.values())

        def replicas(kind: str, count: object, wanted: Resources) -> dict[str, Any]:
            trains = _given(
                name=_CONTAINER,
                image=image,
                command=list(command or ()),
                args=list(args or ()),
                env=[_variable(*item) for item in (env_vars or {}).items()],
                resources=_requests(wanted),
            )
            policy = "OnFailure" if kind == "PS" else restart_policy or "ExitCode"
            template = {"spec": {**(pod or {}), "containers": [{**trains, **(container or {})}]}}
            return {"replicas": count, "restartPolicy": policy, "template": template}

        usual = resources or {}
        kinds = {"Chief": int(chief), "PS": ps, "Worker": workers, "Evaluator": int(evaluator)}
        own = {"PS": usual if ps_resources is None else ps_resources}
        bounds = {MIN_WORKERS: min_workers, MAX_WORKERS: max_workers}
        written = {key: str(bound) for key, bound in bounds.items() if bound is not None}
        policy = {**_EVERYWHERE, **(run_policy or {})}
        scheduling = {**policy.get("schedulingPolicy", {}), **_given(queue=queue_name, priorityClass=priority_class)}
        document = {
            "apiVersion": Dialect.TFJOB_V1.value,
            "kind": Dialect.TFJOB_V1.kind,
            "metadata": _given(
                name=name,
                namespace=namespace,
                labels=dict(labels or {}),
                annotations={
                    **_given(**{CODE: _path(code), PACKAGES: " ".join(packages or ())}),
                    **policies,
                    **(annotations or {}),
                    **written,
                },
            ),
            "spec": _given(
                successPolicy=success_policy,
                enableDynamicWorker=enable_dynamic_worker,
                runPolicy={**policy, **_given(schedulingPolicy=scheduling)},
                tfReplicaSpecs={
                    kind: replicas(kind, count, own.get(kind, usual)) for kind, count in kinds.items() if count
                },
            ),
        }
        self._fill(document)

    def _fill(self, document: Mapping[str, Any]) -> None:
        from tf_dist.client.yaml_files import YamlDocument

        self._written, self._companions = YamlDocument(_title(document), None, document, None), ()

    @classmethod
    def from_script(
        cls,
        script: str | os.PathLike[str],
        args: Sequence[str] = (),
        *,
        name: str = "",
        image: str = "",
        gpus: int = 0,
        code: str | os.PathLike[str] = "",
        resources: Resources | None = None,
        ps_resources: Resources | None = None,
        **arguments: Any,
    ) -> Self:
        """A job whose replicas all run a script: ``TFJob.from_script("train.py", ["--epochs=3"], workers=2, ps=1)``.

        The folder of the script is sent with the job, and is the working directory. InvalidJob.

        :param script: A Python program (``….py``), or any executable file.
        :param args: The arguments of the script.
        :param name: The name of the job, by default that of the script.
        :param image: The image of every replica on a cluster, by default TensorFlow's, of the installed version.
        :param gpus: The number of GPUs of each replica except parameter servers.
        :param code: The folder to send, by default that of the script. It must contain the script.
        :param arguments: The other arguments of ``TFJob``.
        """
        path = Path(script)
        folder = Path(code) if code else path.parent
        inside = Path(os.path.relpath(path, folder))
        shown = os.fspath(path).encode(errors="backslashreplace").decode()
        problems = [] if os.path.isfile(path) else [Problem("script", f"there is no file {shown}", "check its path")]
        if shown != os.fspath(path):
            problems.append(Problem("script", f"the name of {shown} is not UTF-8, as it must be in a job", "rename it"))
        if ".." in inside.parts:
            problems.append(Problem("code", f"{path} is not in {folder}", "name a folder that has the script in it"))
        if type(gpus) is not int or gpus < 0:
            problems.append(Problem("gpus", f"must be a whole number from 0 up, not {gpus!r}", "write 1"))
        _refuse({}, problems)
        # Kubernetes expands $(NAME) and reduces $$; Python takes a name that begins with - for an option.
        program = inside.as_posix().replace("$", "$$")
        program = f"./{program}" if program.startswith("-") or path.suffix != ".py" else program
        command = ["python3", "-u", program] if path.suffix == ".py" else [program]
        return cls(
            name or job_name(path.stem),
            image=image or _tensorflow_image(gpus),
            command=command,
            args=args,
            code=folder,
            resources={**(resources or {}), **({"nvidia.com/gpu": gpus} if gpus else {})},
            ps_resources=(resources or {}) if gpus and ps_resources is None else ps_resources,
            **arguments,
        )

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """The only job of a YAML or JSON file, in any format, with its companion objects.

        InvalidFiles, an InvalidJob, lists all problems with their lines.
        """
        from tf_dist.client.job_files import load_job_files

        return cls._of_files(load_job_files([os.fspath(path)]))

    @classmethod
    def from_yaml(cls, text: str) -> Self:
        """The only job of a text, see ``from_file``."""
        from tf_dist.client.job_files import load_job_files

        return cls._of_files(load_job_files(["the text"], texts={"the text": text}))

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """The job of a document in any format; InvalidJob with all problems."""
        if not isinstance(document, Mapping):
            raise InvalidJob([Problem("", f"must be a mapping, not {document!r}", "from_yaml and from_file take text")])
        made = cls.__new__(cls)
        made._fill(copy.deepcopy(dict(document)))
        return cls._of_files(made.files())

    @classmethod
    def _of_files(cls, files: JobFiles) -> Self:
        from tf_dist.client.job_files import one_job

        made = cls.__new__(cls)
        made._written, made._companions = one_job(files).written, files.companions
        return made

    def files(self) -> JobFiles:
        """The job as parsed, its companion objects, and the problems of both."""
        from tf_dist.client.job_files import load_documents

        return load_documents([self._written, *self._companions])

    @property
    def name(self) -> str:
        """The name of the job; "" for none."""
        return self._metadata("name")

    @property
    def namespace(self) -> str:
        """The namespace of the job; "" for none."""
        return self._metadata("namespace")

    def _metadata(self, key: str) -> str:
        return str((self._written.content.get("metadata") or {}).get(key) or "")

    @property
    def companions(self) -> tuple[YamlDocument, ...]:
        """The companion objects of the job's file."""
        return self._companions

    @property
    def job(self) -> Job:
        """The parsed document: replicas, policies, scheduling. InvalidJob with all problems."""
        from tf_dist.client.job_files import one_job

        return one_job(self.files()).job

    def replace(
        self,
        *,
        name: str = "",
        namespace: str = "",
        workers: int | None = None,
        ps: int | None = None,
        image: str = "",
        command: Sequence[str] = (),
        args: Sequence[str] = (),
        code: str | os.PathLike[str] = "",
        packages: Sequence[str] | None = None,
        queue_name: str = "",
        priority_class: str = "",
        env_vars: Environment | None = None,
        resources: Resources | None = None,
        fallback: Sequence[Mapping[str, Any]] | None = None,
        on_eviction: str | None = None,
        on_preemption: str | None = None,
        admission_timeout: float | str | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> TFJob:
        """A copy of the job with these changes, in its own format. InvalidJob if the format has no such field.

        ``image``, ``command`` and ``args`` change the containers that train. ``env_vars`` are added to every container,
        and do not replace variables. ``resources`` are the requests of workers. ``labels`` and ``annotations`` are
        added. ``overrides`` sets any field by its path: ``{"spec.runPolicy.backoffLimit": 3}``.
        """
        from dataclasses import replace

        from tf_dist.core.dialects import apply_step_overrides, parse
        from tf_dist.core.model.overrides import apply_overrides, named_overrides, refuse_unknown_keys

        before = mapping((self._written.content.get("metadata") or {}).get("annotations"))
        has = bool(before.get(FALLBACK))
        policies, wrong = _policies(fallback, on_eviction, on_preemption, admission_timeout, has_fallbacks=has)
        given: dict[str, object] = {"name": name, "namespace": namespace, "image": image, "command": command}
        given |= {"args": args, "workers": workers, "ps": ps, "env_vars": env_vars, "resources": resources}
        given |= {"packages": packages}
        given |= {"queue_name": queue_name, "priority_class": priority_class}
        given |= {"labels": labels, "annotations": annotations, "overrides": overrides, "code": _path(code)}
        _refuse(given, wrong)
        read = {name: options_of(RunOptions)[name].read(given[name]) for name in _CHANGES}
        wanted = RunOptions(**read).changes(queue=queue_name)
        places = named_overrides(overrides or {})
        content = self._written.content
        own = content["metadata"]
        nameless = not (own.get("name") or own.get("generateName"))  # a pipeline may set the name later
        content = apply_step_overrides({**content, "metadata": {**own, "name": "job"}} if nameless else content, wanted)
        if nameless:
            content = {**content, "metadata": {key: x for key, x in content["metadata"].items() if key != "name"}}
        content = apply_overrides(content, places)
        if places:
            try:
                warned = parse(content, strict=False).warnings
            except InvalidJob:
                warned = ()  # reported when the job is read; a template may still get a valid value
            refuse_unknown_keys(places, warned)
        metadata = {**content["metadata"], **_given(name=name, namespace=namespace)}
        for key, more in (
            ("labels", labels),
            ("annotations", {**_given(**{CODE: _path(code)}), **policies, **(annotations or {})}),
        ):
            metadata |= _given(**{key: {**(metadata.get(key) or {}), **(more or {})}})
        made = copy.copy(self)
        made._written = replace(self._written, content={**content, "metadata": metadata})
        return made

    def to_dict(self) -> dict[str, Any]:
        """A copy of the document that is submitted."""
        return copy.deepcopy(dict(self._written.content))

    def to_yaml(self) -> str:
        """The companion objects and the document, as YAML."""
        from tf_dist.client.yaml_files import to_yaml

        documents = [dict(one.content) for one in (*self._companions, self._written)]
        return to_yaml(documents if self._companions else documents[0])

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """The state without the nodes of the YAML parser, which cannot be pickled."""
        from dataclasses import replace

        plain = [replace(one, node=None) for one in (self._written, *self._companions)]
        return None, {"_written": plain[0], "_companions": tuple(plain[1:])}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TFJob) and _contents(self) == _contents(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{_title(self._written.content)}>"


_GIVEN: Final = [*TFJob.__init__.__annotations__]
_DOCUMENTED: Final = {
    name: row
    for name, row in options_of(RunOptions).items()
    if name in _GIVEN and f":param {name}:" not in (TFJob.__doc__ or "")
}
TFJob.__doc__ = f"{TFJob.__doc__}{documented(_DOCUMENTED, Face.COMMAND)}"


def _contents(job: TFJob) -> list[Any]:
    return [one.content for one in (job._written, *job._companions)]


def _title(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return f"{document.get('kind', 'job')} {name or 'without a name'}"


def _given(**values: object) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}


def job_name(text: str) -> str:
    """A job name from the name of a script or a step. It is short enough for the names of the replicas."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_LONGEST_NAME].strip("-") or "train"


def _tensorflow_image(gpus: int) -> str:
    """TensorFlow's image of the version that is installed."""
    from importlib.metadata import PackageNotFoundError, version

    found = "latest"
    for package in ("tensorflow", "tensorflow-cpu"):
        with suppress(PackageNotFoundError):
            found = version(package)
            break
    return f"tensorflow/tensorflow:{found}{'-gpu' if gpus else ''}"


def _path(folder: object) -> Any:
    """The text of a path. Other values are checked like any argument."""
    return os.fspath(folder) if isinstance(folder, os.PathLike) else folder


def _variable(name: str, value: str | Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, ("valueFrom" if isinstance(value, Mapping) else "value"): value}


def _requests(wanted: Resources) -> dict[str, Any]:
    return _given(requests=dict(wanted), limits={key: value for key, value in wanted.items() if "/" in key})


def _policies(
    fallback: Any, on_eviction: Any, on_preemption: Any, admission_timeout: Any, *, has_fallbacks: bool = False
) -> tuple[dict[str, str], tuple[Problem, ...]]:
    """The annotations of these arguments, and their problems."""
    if admission_timeout is not None and fallback is None and not has_fallbacks:
        hint = "add fallback, or limit the wait: Client.wait(…, timeout=…)"
        return {}, (Problem("admission_timeout", "sets the time before a fallback, but there is no fallback", hint),)
    given = RunOptions(
        fallback=fallback, on_eviction=on_eviction, on_preemption=on_preemption, admission_timeout=admission_timeout
    )
    try:
        return given.policies(has_fallbacks=has_fallbacks, open_=is_template), ()
    except InvalidJob as error:
        return {}, error.problems


def _refuse(given: Mapping[str, object], others: Iterable[Problem]) -> None:
    """InvalidJob with the problems of these arguments and the ``others``, if any."""
    problems = [*(one for name, value in given.items() for one in argument_problems(name, value)), *others]
    if problems:
        raise InvalidJob(problems)


def _clash_problems(
    pod: object, container: object, run_policy: object, arguments: Mapping[str, object]
) -> Iterator[Problem]:
    """Fields that would be lost, or would replace the value of another argument."""
    if "containers" in mapping(pod):
        yield Problem("pod.containers", "the arguments make the container", "give more fields as container")
    for field in mapping(container):
        name = "env_vars" if field == "env" else field
        if arguments.get(name):
            yield Problem(f"container.{field}", f"would replace the value of {name}", f"write it in {name} only")
    given = mapping(run_policy).get("schedulingPolicy", {})
    if not isinstance(given, Mapping):
        yield Problem("run_policy.schedulingPolicy", f"must be a mapping, not {given!r}", 'give {"minAvailable": 2}')
