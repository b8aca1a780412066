"""Values for parameters that expect a number or a word, but that a parser on the way may read as more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_POD = """0.05
              securityContext: {privileged: true}
          hostPID: true
    Chief:
      replicas: 1
      restartPolicy: Never
      template:
        spec:
          containers:
            - name: tensorflow
              image: busybox
              command: [sh, -c, id]"""

PAYLOADS = {
    "pod": _POD,
    "pod of windows": _POD.replace("\n", "\r\n"),
    "container": "0.05\n              securityContext: {privileged: true}",
    "carriage return": "0.05\r          hostPID: true",
    "tab": "0.05\thostPID: true",
    "single quote": "0.05'\n- 'x",
    "double quote": '0.05"\n- "x',
    "three quotes": "0.05'''; import os; os.system('id') #",
    "braces that close": "0.05}}",
    "braces that open": "0.05{{",
    "parameter": "{{workflow.parameters.image}}",
    "expression": "{{=sprig.env('HOME')}}",
    "jinja": "{% for x in [1] %}{{ ti }}{% endfor %}",
    "anchor and alias": "&a [*a]",
    "tag": "!!python/object/apply:os.system [id]",
    "local tag": "!x 1",
    "document": "0.05\n---\nkind: TFJob",
    "end of document": "0.05\n...",
    "flow mapping": "{privileged: true}",
    "flow list": "[a, b]",
    "json": '{"privileged": true}',
    "python": "{'privileged': True}",
    "key and value": "privileged: true",
    "comment": "0.05 # rest",
    "block": "|\n  a",
    "long": "9" * 10_000,
    "longer": "a" * 200_000,
    "nul": "0.05\0",
    "escape": "0.05\x1b[2J",
    "next line": "0.05\x85  hostPID: true",
    "line separator": "0.05\u2028hostPID: true",
    "paragraph separator": "0.05\u2029hostPID: true",
    "percent": "0.05%0ahostPID: true",
    "option": "--kubeconfig=/etc/passwd",
    "dash": "-",
    "file": "@/etc/passwd",
    "argo's file": "@/tmp/argo_arg_0.txt",
    "reference": "&",
    "variable": "$(HOME)",
    "shell": "$(id)`id`;id|id",
    "path": "../../../etc",
    "infinite": "1e400",
    "not a number": "NaN",
    "infinity": ".inf",
    "hexadecimal": "0x1F",
    "underscores": "1_000",
    "octal": "012",
    "other digits": "٣",
    "below": "-1",
    "yes": "yes",
    "on": "on",
    "null": "null",
    "tilde": "~",
    "date": "2026-11-22",
    "sexagesimal": "12:30:45",
    "blank": " ",
}


def leaves(value: Any, path: tuple[object, ...] = ()) -> Iterator[tuple[tuple[object, ...], Any]]:
    """All scalars of a document with their paths. An empty list or mapping counts as a scalar."""
    if isinstance(value, Mapping) and value:
        for key, one in value.items():
            yield from leaves(one, (*path, key))
    elif isinstance(value, list) and value:
        for index, one in enumerate(value):
            yield from leaves(one, (*path, index))
    else:
        yield path, value


def changed_leaves(before: Any, after: Any) -> set[tuple[object, ...]]:
    """The paths at which two documents differ. Raises AssertionError if their paths differ."""
    was, now = dict(leaves(before)), dict(leaves(after))
    assert was.keys() == now.keys(), f"places that come or go: {sorted(map(str, was.keys() ^ now.keys()))}"
    return {path for path in was if was[path] != now[path] or type(was[path]) is not type(now[path])}
