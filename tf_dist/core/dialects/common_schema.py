"""Schema that all formats share: metadata, number types, and the names that Kubernetes accepts.

A name that is too long for the job's pods is an error here. The API server accepts such a job, but rejects its pods.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tf_dist.core.dialects.field_errors import MISSING, FieldErrors
from tf_dist.core.model import names
from tf_dist.core.model.fieldpath import FieldPath, list_items, mapping, text, value_at
from tf_dist.core.model.job import MAX_REPLICAS, Dialect, Document, Job, JobKey

SUSPEND_ANNOTATION: Final = names.SUSPEND
SERVICES_ANNOTATION: Final = names.SERVICES
TF_CONTAINER: Final = "tensorflow"
TF_PORT_NAME: Final = "tfjob-port"
TF_PORT: Final = 2222
INT32_MAX: Final = 2**31 - 1
_MOST_DIGITS: Final = len(str(INT32_MAX))

Count = Annotated[int, Field(ge=0, le=INT32_MAX)]
"""A count: the API's int32, never negative."""

Positive = Annotated[int, Field(ge=1, le=INT32_MAX)]
MAX_CONTAINERS: Final = 64
"""The maximum number of containers of a pod. The API server estimates the cost of a rule from the maximum."""

ReplicaCount = Annotated[int, Field(ge=0, le=MAX_REPLICAS)]
Seconds = Annotated[int, Field(ge=0, le=INT32_MAX)]
Int32 = Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)]
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
LongSeconds = Annotated[int, Field(ge=0, le=2**63 - 1)]
Port = Annotated[int, Field(ge=1, le=65535)]
Template = dict[str, Any]
"""A pod template as a plain mapping; ``pod_template`` checks it."""


class SchemaModel(BaseModel):
    """Base of schemas: unknown keys are errors, and ``"2"`` is not a number, as in the API server."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True, alias_generator=to_camel)


class Metadata(SchemaModel):
    """Kubernetes' ObjectMeta. tf-dist uses the first fields. The API server sets the others, which are accepted."""

    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    uid: str | None = None
    generation: int | None = None
    creation_timestamp: Any = None
    deletion_grace_period_seconds: Any = None
    deletion_timestamp: Any = None
    finalizers: Any = None
    managed_fields: Any = None
    owner_references: Any = None
    resource_version: Any = None
    self_link: Any = None
    cluster_name: Any = None  # of API servers before 1.24

    @property
    def job_name(self) -> str:
        """The name, or an example of a name that the API server generates from generateName."""
        return self.name or (f"{self.generate_name}xxxxx" if self.generate_name else "")

    @property
    def key(self) -> JobKey:
        """Namespace and name of the job."""
        return JobKey(self.namespace or "default", self.job_name)

    @property
    def suspended(self) -> bool:
        """Whether the annotation suspends the job."""
        return (self.annotations or {}).get(SUSPEND_ANNOTATION) == "true"


class Envelope(SchemaModel):
    """The fields around the spec of every document."""

    api_version: str
    kind: str
    metadata: Metadata
    status: Any = None


class Layout(NamedTuple):
    """The paths of common fields in documents of a format."""

    replicas: FieldPath
    """The entries of replicas: a mapping by type in TFJob v1, a list in the other formats."""
    default_count: int
    """The default number of replicas of an entry."""
    queue: FieldPath | None = None
    priority_class: FieldPath | None = None
    minimums: tuple[FieldPath, ...] = ()
    """Numbers that cannot exceed the total number of replicas."""


_SCHEDULING_POLICY: Final = ("spec", "runPolicy", "schedulingPolicy")
LAYOUTS: Final[Mapping[Dialect, Layout]] = {
    Dialect.TFJOB_V1: Layout(
        replicas=("spec", "tfReplicaSpecs"),
        default_count=1,
        queue=(*_SCHEDULING_POLICY, "queue"),
        priority_class=(*_SCHEDULING_POLICY, "priorityClass"),
        minimums=((*_SCHEDULING_POLICY, "minAvailable"),),
    ),
    Dialect.TFJOB_V1ALPHA1: Layout(replicas=("spec", "replicaSpecs"), default_count=1),
    Dialect.VOLCANO: Layout(
        replicas=("spec", "tasks"),
        default_count=0,
        queue=("spec", "queue"),
        priority_class=("spec", "priorityClassName"),
        minimums=(("spec", "minAvailable"), ("spec", "minSuccess")),
    ),
}


def replica_path(job: Job, position: int) -> FieldPath:
    """The path of ``job.replica_specs[position]`` in the document."""
    key = job.replica_specs[position].name if job.dialect is Dialect.TFJOB_V1 else position
    return (*LAYOUTS[job.dialect].replicas, key)


class RawTemplate(NamedTuple):
    """A pod template as written in a document."""

    loc: FieldPath
    template: object
    replicas: int
    """The number of its pods."""
    server: bool
    """Whether tf-dist adds the container (v1alpha1's default parameter server), so that the template may have none."""


def raw_templates(document: Document, dialect: Dialect) -> Iterator[RawTemplate]:
    """The templates of a document, whose other parts may be invalid."""
    layout = LAYOUTS[dialect]
    found = value_at(document, *map(str, layout.replicas))
    entries = mapping(found).items() if dialect is Dialect.TFJOB_V1 else enumerate(list_items(found))
    for key, entry in entries:
        template, count = value_at(entry, "template"), value_at(entry, "replicas")
        if template is not None and isinstance(key, str | int):
            number = count if type(count) is int else layout.default_count
            is_server = dialect is Dialect.TFJOB_V1ALPHA1 and text(value_at(entry, "tfReplicaType")).upper() == "PS"
            yield RawTemplate((*layout.replicas, key, "template"), template, number, is_server)


def written_number(text: str, least: int, most: int) -> int | None:
    """The whole number in a text, such as an annotation; None if the text is not a number, or is out of bounds."""
    text = text.strip()
    if not (text.isascii() and text.isdecimal()) or len(text) > _MOST_DIGITS:
        return None
    return int(text) if least <= int(text) <= most else None


def template_containers(template: object, field: str = "containers") -> Iterator[tuple[FieldPath, Mapping[str, Any]]]:
    """The containers of a raw template that are mappings, with their paths."""
    for index, container in enumerate(list_items(value_at(template, "spec", field))):
        if type(container) is dict or isinstance(container, Mapping):
            yield ("spec", field, index), container


def container_names(template: object) -> list[Any]:
    """The names of a raw template's containers."""
    return [container.get("name") for _, container in template_containers(template)]


def named_port(template: object, container: str, default: int) -> int:
    """The port on which TensorFlow listens: the container's port ``tfjob-port``, or else the default."""
    for _, found in template_containers(template):
        if found.get("name") != container:
            continue
        for port in list_items(found.get("ports")):
            number = value_at(port, "containerPort")
            if value_at(port, "name") == TF_PORT_NAME and type(number) is int:
                return number
    return default


def without_none(**values: object) -> dict[str, Any]:
    """A mapping of the keys whose value is not None."""
    return {key: value for key, value in values.items() if value is not None}


def with_defaults(given: Mapping[str, Any], **defaults: Any) -> dict[str, Any]:
    """A mapping in which these defaults replace missing values."""
    return {**given, **{key: value for key, value in defaults.items() if given.get(key) is None}}


DNS_SERVICE: Final = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")
"""A DNS-1035 label, as names of Services must be, and names from which Services are named."""

MAX_NAME: Final = 63


def check_label(name: str, loc: FieldPath, out: FieldErrors, *, letter_first: bool = False) -> bool:
    """Report a name that is not a DNS label; ``letter_first``: DNS-1035, as for services."""
    if len(name) > MAX_NAME:
        out.error(loc, f"is {len(name)} characters long; the limit is {MAX_NAME}")
        return False
    if (DNS_SERVICE if letter_first else names.DNS_LABEL).fullmatch(name):
        return True
    rule = "start with a letter" if letter_first else "start with a letter or digit"
    better = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:MAX_NAME].rstrip("-")
    if letter_first:
        better = better.lstrip("-0123456789")
    message = f"{name!r} is not a valid Kubernetes name: lower-case letters, digits and '-' only, and it must {rule}"
    out.error(loc, message, f'write "{better}"' if better else "")
    return False


def check_metadata(metadata: Metadata, out: FieldErrors, *, letter_first: bool) -> bool:
    """Check the job's name and namespace. Returns whether the name is valid, so that derived names can be checked."""
    if metadata.namespace is not None:
        check_label(metadata.namespace, ("metadata", "namespace"), out)
    if metadata.name:
        return check_label(metadata.name, ("metadata", "name"), out, letter_first=letter_first)
    if metadata.generate_name:
        return check_label(metadata.job_name, ("metadata", "generateName"), out, letter_first=letter_first)
    out.error(("metadata", "name"), MISSING, "give the job a name")
    return False


def check_pod_names(metadata: Metadata, groups: Iterable[tuple[str, int]], out: FieldErrors) -> None:
    """Check the names ``{job}-{type}-{index}`` of pods and Services. A Service name has at most 63 characters."""
    endings = [f"-{type_}-{replicas - 1}" for type_, replicas in groups if replicas > 0]
    longest = max(endings, key=len, default="")
    name = metadata.job_name
    if len(name) + len(longest) <= MAX_NAME:
        return
    room = MAX_NAME - len(longest) - (0 if metadata.name else 5)
    field = "name" if metadata.name else "generateName"
    made = f"the replica {name + longest!r} would have a name of {len(name) + len(longest)} characters"
    fits = f"with these replicas the {field} may have {room} characters"
    hint = fits if room > 0 else "shorten the replica type's name"
    out.error(("metadata", field), f"{made}; {MAX_NAME} are allowed", hint)
