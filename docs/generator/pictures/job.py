"""The way of a job from its document to pods, as boxes and arrows."""

from __future__ import annotations

from html import escape

from docs.generator.pictures import keep
from docs.generator.pictures.svg import page

_BOXES = (  # left, top, width, text
    (14, 44, 274, "TFJob v1 · TFJob v1alpha1 · Volcano Job"),
    (420, 44, 44, "Job"),
    (14, 124, 184, "cluster, embedded or real"),
    (292, 124, 82, "informers"),
    (436, 124, 114, "admission loop"),
    (610, 124, 176, "work queue of changed jobs"),
    (470, 208, 134, "worker: reconcile"),
)
_ARROWS = (  # path, middle and height of the text, text
    ("M288 61H420", 354, 54, "dialects"),
    ("M198 141H292", 245, 134, "list, watch"),
    ("M374 141H436", 0, 0, ""),
    ("M550 141H610", 580, 134, "verdicts"),
    ("M698 158V225H604", 728, 196, "one job"),
    ("M470 225H106V158", 290, 218, "status, pods, services, events"),
)


def journey() -> None:
    """Keep ``job.svg``."""
    parts = [
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#4a5568"/></marker></defs>'
    ]
    for path, x, y, text in _ARROWS:
        parts.append(f'<path d="{path}" stroke="#4a5568" fill="none" marker-end="url(#head)"/>')
        parts.append(f'<text x="{x}" y="{y}" text-anchor="middle" font-size="11" fill="#4a5568">{escape(text)}</text>')
    for x, y, width, text in _BOXES:
        parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="34" rx="6" fill="#e8edf7" stroke="#4a5568"/>')
        parts.append(f'<text x="{x + width / 2:g}" y="{y + 21}" text-anchor="middle">{escape(text)}</text>')
    keep("job.svg", page(262, "From a document to pods", "".join(parts)))
