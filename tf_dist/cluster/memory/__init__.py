"""The embedded cluster: objects with Kubernetes' semantics in this process, durable if wanted."""

from tf_dist.cluster.memory.addresses import AddressBook
from tf_dist.cluster.memory.cluster import MemoryCluster
from tf_dist.cluster.memory.durable import SqliteJournal
from tf_dist.cluster.memory.reaping import DeleteOptions
from tf_dist.cluster.memory.scheduler import Scheduler
from tf_dist.cluster.memory.sources import AddressSource, LogSource

__all__ = [
    "AddressBook",
    "AddressSource",
    "DeleteOptions",
    "LogSource",
    "MemoryCluster",
    "Scheduler",
    "SqliteJournal",
]
