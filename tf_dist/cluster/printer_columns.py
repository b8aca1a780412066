"""Additional printer columns of our custom resources: the output of ``kubectl get``.

``tf-dist install`` writes them into the definitions; the embedded API server also uses them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class AdditionalPrinterColumn:
    """A column: its title, the dotted path of its value, its type; ``priority`` 1: only with ``-o wide``."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0


_AGE: Final = AdditionalPrinterColumn("Age", "metadata.creationTimestamp", "date")

TFJOB_COLUMNS: Final = (
    AdditionalPrinterColumn("State", "status.tfDist.state"),
    AdditionalPrinterColumn("Ready", "status.tfDist.ready"),
    AdditionalPrinterColumn("Reason", "status.tfDist.why"),
    _AGE,
)
QUEUE_COLUMNS: Final = (
    AdditionalPrinterColumn("Pending", "status.pending", "integer"),
    AdditionalPrinterColumn("Admitted", "status.admitted", "integer"),
    AdditionalPrinterColumn("Used", "status.usage"),
    AdditionalPrinterColumn("Share", "status.share"),
    AdditionalPrinterColumn("Parent", "spec.parent"),
    _AGE,
    AdditionalPrinterColumn("Weight", "spec.weight", "integer", priority=1),
    AdditionalPrinterColumn("Message", "status.message", priority=1),
)
VOLCANO_JOB_COLUMNS: Final = (
    AdditionalPrinterColumn("Status", "status.state.phase"),
    AdditionalPrinterColumn("minAvailable", "status.minAvailable", "integer"),
    AdditionalPrinterColumn("Runnings", "status.running", "integer"),
    _AGE,
    AdditionalPrinterColumn("Queue", "spec.queue", priority=1),
)
