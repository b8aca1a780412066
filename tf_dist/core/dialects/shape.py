"""What the document formats have in common: strict models of our own keys, metadata, and safe steps into raw dicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tf_dist.core import names
from tf_dist.core.dialects.problems import Loc
from tf_dist.core.model import MOST_REPLICAS, JobKey
from tf_dist.core.untyped import at, items

SUSPEND_ANNOTATION: Final = names.SUSPEND
SERVICES_ANNOTATION: Final = "tf-dist.dev/services"
TF_CONTAINER: Final = "tensorflow"
TF_PORT_NAME: Final = "tfjob-port"
TF_PORT: Final = 2222
INT32_MAX: Final = 2**31 - 1
_MOST_DIGITS: Final = len(str(INT32_MAX))

Count = Annotated[int, Field(ge=0, le=INT32_MAX)]
"""A number of things; the API's int32, never negative."""

Positive = Annotated[int, Field(ge=1, le=INT32_MAX)]
MOST_CONTAINERS: Final = 64
"""So many containers a pod may have here: a rule about them costs an API server as much as there may be."""

ReplicaCount = Annotated[int, Field(ge=0, le=MOST_REPLICAS)]
Seconds = Annotated[int, Field(ge=0, le=INT32_MAX)]
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
LongSeconds = Annotated[int, Field(ge=0, le=2**63 - 1)]
Port = Annotated[int, Field(ge=1, le=65535)]
Template = dict[str, Any]
"""A pod template stays what it is: its checks are in ``pod_template``."""


class Shape(BaseModel):
    """A mapping whose keys are ours: unknown ones are mistakes, and ``"2"`` is no number, as for the API server."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True, alias_generator=to_camel)


class Metadata(Shape):
    """Kubernetes' ObjectMeta: ours is the first part, the rest is the API server's and passes."""

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

    @property
    def job_name(self) -> str:
        """The name, or an example of the one that the API server will make of generateName (five characters more)."""
        return self.name or (f"{self.generate_name}xxxxx" if self.generate_name else "")

    @property
    def key(self) -> JobKey:
        """Where the job is or will be."""
        return JobKey(self.namespace or "default", self.job_name)

    @property
    def suspended(self) -> bool:
        """Whether the annotation suspends the job."""
        return (self.annotations or {}).get(SUSPEND_ANNOTATION) == "true"


class Envelope(Shape):
    """What every document has around its spec."""

    api_version: str
    kind: str
    metadata: Metadata
    status: Any = None


class RawTemplate(NamedTuple):
    """A pod template as written, with where it is and how many pods are made of it.

    ``server``: tf-dist adds a container to it, so that it needs none of its own (v1alpha1's default parameter server).
    """

    loc: Loc
    template: object
    replicas: int
    server: bool = False


def written_number(text: str, least: int, most: int) -> int | None:
    """The whole number that a text says, as annotations do; None if it says none, or one beyond these bounds."""
    text = text.strip()
    if not (text.isascii() and text.isdecimal()) or len(text) > _MOST_DIGITS:
        return None
    return int(text) if least <= int(text) <= most else None


def containers(template: object, field: str = "containers") -> Iterator[tuple[Loc, Mapping[str, Any]]]:
    """The containers of a raw template that are mappings, with where they are."""
    for index, container in enumerate(items(at(template, "spec", field))):
        if type(container) is dict or isinstance(container, Mapping):
            yield ("spec", field, index), container


def container_names(template: object) -> list[Any]:
    """The names of a raw template's containers."""
    return [container.get("name") for _, container in containers(template)]


def named_port(template: object, container: str, default: int) -> int:
    """The port TensorFlow listens on: the one named ``tfjob-port`` of that container, else the default."""
    for _, found in containers(template):
        if found.get("name") != container:
            continue
        for port in items(found.get("ports")):
            number = at(port, "containerPort")
            if at(port, "name") == TF_PORT_NAME and type(number) is int:
                return number
    return default


def without_none(**values: object) -> dict[str, Any]:
    """A mapping of those keys that have a value."""
    return {key: value for key, value in values.items() if value is not None}
