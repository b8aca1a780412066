"""Parser of the metrics in replicas' log lines.

The parser reads ``name=value`` as Katib's collector does, the output of Keras and of estimators, and ``name: value`` if
the name is a usual measure of a training. ``nan`` and ``inf`` are numbers, because users must see a loss that diverged.
Text that only begins like a number (``10.0.0.1``, ``3s``, ``2026-11-27``) is not a number. Lines of tracebacks, source
code and libraries have no metrics.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, Literal, Self

MOST_NAMES: Final = 100
"""The maximum number of metrics of a job, because each needs a column, an output and a copy. The first names are kept.
"""
RESULT_MARK: Final = "tf-dist-result: "
"""The prefix of a line with the value of a ``@task.tfjob`` function, as JSON."""
_LONGEST: Final = 4096  # characters: lines with metrics are short; longer lines are data
_LONGEST_HISTORY: Final = 65_536  # characters of the history of a training, which has a number for each epoch

_NUMBER: Final = r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[nN][aA][nN]|[iI][nN][fF](?:inity)?)"
_UNIT: Final = (
    r"(?:[kKMGT]i?[bB]?|[bB]|bytes|[nuµm]?s|secs?|seconds?|msecs?|usecs?|min|mins|minutes?|h|hrs?|hours?|days?"
    r"|[kMG]?[hH]z|milliseconds?|microseconds?|MiB/s|[MG]B/s)"
)
# The number is not part of a longer word, a list (1,2), a date (2026-11-27, 11/27/2026), a clock time or an expression
# (3*4), and no unit follows it.
_END: Final = (
    r"(?![\w*+^@°]|:\S|\.\w|-\w|,\d|/\d{1,2}/\d)"
    rf"(?![ \t]+{_UNIT}(?:[^\w=:/]|/s\b|/step\b|$)(?![ \t]*=))"
)
_PAIR: Final = re.compile(rf"(?<![\w|./?&$=@%~+-])([A-Za-z_][\w|/-]*)[ \t]*=[ \t]*({_NUMBER}){_END}(?![ \t]+# )")
_KERAS_LINE: Final = re.compile(r"\s*(?:(?:Epoch )?\d+/(?:\d+|Unknown)(?=[ \[])|-? ?\d+m?s )")
_KERAS_EPOCH: Final = re.compile(r"\s*Epoch (\d{1,9})(?:/(\d{1,9}))?\s*$")
_KERAS_BATCH: Final = re.compile(r"\s*(\d{1,9})/(\d{1,9})(?=[ \[])")
_KERAS_PAIR: Final = re.compile(rf"(?<= - )([A-Za-z_][\w|/-]*): ({_NUMBER})(?= - |\s*$)")
_DICT: Final = re.compile(
    rf"""(?<![\w"'])[{{]\s*["'][\w|/ -]+["']:\s*(?:{_NUMBER}|\[[^\[\]{{}}"']*\])"""
    rf"""(?:,\s*["'][\w|/ -]+["']:\s*(?:{_NUMBER}|\[[^\[\]{{}}"']*\]))*\s*[}}]\s*$"""
)
_DICT_ITEM: Final = re.compile(rf"""["']([A-Za-z_][\w|/-]*)["']:\s*(?:\[(?:[^\]]*,)?\s*)?({_NUMBER})\s*(?=[\],}}\s])""")
_FINAL_LOSS: Final = re.compile(rf"Loss for final step: ({_NUMBER})\.?\s*$")
_STEP_RATE: Final = re.compile(rf"(global_step/sec): ({_NUMBER})\s*$")
_FLOAT_CALL: Final = re.compile(rf"\b(?:np\.|numpy\.)?float\d*\(({_NUMBER})\)")
_CHECKPOINT: Final = re.compile(r"(?<![\w|.-])checkpoint[ \t]*=[ \t]*(?:\"([^\"]+)\"|'([^']+)'|([^\s,;'\"]+))")
# The output of Keras' ModelCheckpoint(verbose=1), of estimators and of TensorFlow's tutorials.
_SAVED: Final = re.compile(
    r"(?:\b[Ss]aving model to|\bSav(?:ing|ed) checkpoints? (?:for|at) (?:step |epoch )?\d+(?: (?:into|to|at)|:))"
    r"[ \t]+([^\s,;'\"]+?)\.?[ \t]*$"
)
# A number that is not part of a word, and whose size is irrelevant: a number of ten digits may be a time.
_ANY_NUMBER: Final = re.compile(r"(?<![\w.])\d{1,9}(?:\.\d{1,12})?(?:[eE][+-]\d\d)?(?![\w.])")
_MANY: Final = 50
"""The number of lines from which on skipping similar lines is faster than parsing all lines."""
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")

# The lines that begin a quotation of source code in a log. It consists of the indented lines after them, and in a
# traceback also of the exception.
_TRACEBACK: Final = re.compile(r"\(?most recent call (?:last|first)\)?:?|^\s*File \".*\", line \d+")
_WARNING: Final = re.compile(r"\S:\d+: \w*Warning: ")
# Lines of compiled libraries (with their source file before the text), of NCCL, of a shell that traces or lists its
# environment, of a debugger or an interactive Python, and of TensorFlow's strategies. The expressions are separate,
# because they are matched against every line of every log, and a combined expression takes four times as long.
_LIBRARY_BEGIN: Final = re.compile(
    r"(?:one)?dnnl?_verbose,|\s*(?:\++ |export |declare |setenv |ENV |ARG |-+> |>>> |\.\.\. )|\s*│\s*❱?\s*\d+ "
)
_LIBRARY_FILE: Final = re.compile(r"\.(?<=[\w/]\.)(?:cc|cpp|cxx|c|cu|h|hpp|go|rs|java):\d+[\]):]")
_LIBRARY_WORDS: Final = re.compile(
    r" NCCL (?:INFO|WARN|TRACE) |\ball_?reduce\b.*\b(?:num_packs|group_size)\b|\bcluster_spec = |\bUsing config: "
)
_LIBRARY_HINTS: Final = (" NCCL ", "reduce", "cluster_spec", "Using config")
_CODE: Final = re.compile(
    r"^\s*(?:\d+[: ]\s*)?(?:(?:async )?(?:def|class|with|for|if|elif|while|except|lambda) .*:\s*$"
    r"|(?:return|raise|import|assert|del|yield|await|print) ?\(?\w.*[()])|^\s+[\w.]+ ?= ?[^=,]+,$"
)
_CALLS: Final = re.compile(r"[\w\])]\(|[()]")
_REPR: Final = re.compile(r"(?:^|(?<=[\s=(\[{,:]))<[A-Za-z_][^<>]*(?:>|$)")

# Last words of the names of metrics in contexts where a number alone does not make a metric: names in capitals, dicts.
_MEASURES: Final = re.compile(
    r"loss|acc|accuracy|auc|precision|recall|f1|score|error|mae|mse|rmse|mape|perplexity|ppl|bleu|m?iou|map|lr|[wc]er"
    r"|fid|kl|ndcg|mrr|elbo|bce|psnr|ssim|step|epoch|reward|return|r2|top\d+"
)
# The value of ``name: value``. Most names before a colon do not belong to metrics, so only usual measures are read.
_COLON_VALUE: Final = re.compile(
    rf": [ \t]*({_NUMBER}){_END}(?=%?(?:[ \t]*(?:$|[,;|)\]])|\.?[ \t]*$|[ \t]+(?:-[ \t]|\(|[A-Za-z][\w \t]*[:=])))"
)
_COLON_NAME: Final = re.compile(r"(?<![\w.'\"/|$@-])[A-Za-z][\w/ -]*$")
_LONGEST_NAME: Final = 60  # characters
_QUALIFIERS: Final = re.compile(
    r"train|training|val|valid|validation|dev|test|testing|eval|evaluation|final|best|mean|avg|average|total|running"
    r"|absolute|squared|root|log|percentage|cross|entropy|binary|categorical|sparse|f1|macro|micro|top|learning"
)
"""The usual words before a measure, which are part of its name."""
_QUALIFIED: Final = frozenset({"error", "map", "rate", "return", "score"})
"""Words that are measures only after a qualifier, unlike in ``Error: 404``."""
_COUNTERS: Final = frozenset({"step", "epoch"})
"""Words that are measures only at the beginning, unlike in ``Training time of an epoch: 3``."""
# Last words of the names of addresses, identifiers, limits and dates of a process.
_NO_MEASURES: Final = re.compile(
    r"ports?|p?pid|[tug]id|fd|errno|lineno|timeout|timestamp|date|datetime|version|exitcode|returncode|rank|threads"
    r"|bytes|regions"
)
_CLOCKS: Final = re.compile(r"time|ts|start|started|end|created|now|at")
_WORDS: Final = re.compile(r"[_|/-]")
_SEPARATORS: Final = re.compile(r"[ _/-]+")


@dataclass(frozen=True, slots=True)
class KerasProgress:
    """The progress of Keras' ``model.fit``, from its output."""

    epoch: int
    """The current epoch, from 1."""
    epochs: int = 0
    """The number of epochs; 0: unknown."""
    batches: int = 0
    """The number of batches of an epoch; 0: unknown."""
    step: int = 0
    """The number of batches so far, over all epochs."""

    @classmethod
    def at_epoch(cls, before: KerasProgress | None, epoch: int, epochs: int) -> KerasProgress:
        """The progress at the first line of an epoch. If the epoch is not later than before, a new training starts."""
        batches = before.batches if before is not None and epoch > before.epoch else 0
        return cls(epoch, epochs, batches, (epoch - 1) * batches)

    def at_batch(self, done: int, batches: int) -> KerasProgress:
        """The progress at a progress bar. The bar of an evaluation, with another number of batches, is ignored."""
        if self.batches not in (0, batches):
            return self
        return replace(self, batches=batches, step=(self.epoch - 1) * batches + done)


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a replica according to its log lines so far."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    """The latest value of each metric, at most ``MOST_NAMES``, in the order of their appearance."""
    checkpoint: str = ""
    """The last checkpoint in its log."""
    saves: int = field(default=0, compare=False)
    """The number of lines that named a checkpoint. Of similar lines that are parsed together, at most two count."""
    result: str = ""
    """The value of a ``@task.tfjob`` function, as JSON."""
    keras: KerasProgress | None = None
    """The progress of ``model.fit``, if the replica runs it."""
    quoting: Literal["", "source", "traceback"] = ""
    """The kind of quotation in the next indented lines, if any. A traceback ends with the line after them."""

    def after_all(self, lines: Sequence[str]) -> Self:
        """The progress after all lines, in their order."""
        found = self
        for line in lines if len(lines) < _MANY or self.quoting else _distinct(lines):
            found = found.after(line)
        return found

    def after(self, line: str) -> Self:
        """The progress after ``line``; the same object if the line changes nothing."""
        if line.startswith(RESULT_MARK):
            return replace(self, result=line.removeprefix(RESULT_MARK).strip())
        if self.quoting or "most recent call" in line or 'File "' in line or "Warning: " in line:
            if _TRACEBACK.search(line[:_LONGEST]):
                return replace(self, quoting="traceback")
            if _WARNING.search(line[:_LONGEST]):
                return replace(self, quoting="source")
            if self.quoting and (not line.strip() or line[0] in " \t"):
                return self
            if self.quoting == "traceback":  # the exception; indented lines after it are part of its message
                return replace(self, quoting="source")
            return (replace(self, quoting="") if self.quoting else self)._read(line)
        return self._read(line)

    def _read(self, line: str) -> Self:
        saves = "aving " in line or "aved " in line
        if "=" not in line and ": " not in line and not saves:
            return self._after_epoch(line) if "Epoch " in line else self
        plain = _last_drawing(line)
        named = (
            [next(filter(None, groups)) for groups in _CHECKPOINT.findall(plain[:_LONGEST])]
            if "checkpoint" in plain
            else []
        )
        if saves and (saved := _SAVED.search(plain[:_LONGEST])):
            named.append(saved[1])
        checkpoint = next((path for path in reversed(named) if path != "None"), "")
        read = dict(_metrics(plain))
        keras = self.keras
        if keras is not None and read and (batch := _KERAS_BATCH.match(plain)):
            keras = keras.at_batch(int(batch[1]), int(batch[2]))
            read |= self._position(keras)
        metrics = bounded({**self.metrics, **read}) if read else self.metrics
        if not read and not checkpoint:
            return self
        saves_so_far = self.saves + bool(checkpoint)
        return replace(self, metrics=metrics, checkpoint=checkpoint or self.checkpoint, saves=saves_so_far, keras=keras)

    def _after_epoch(self, line: str) -> Self:
        found = _KERAS_EPOCH.match(_last_drawing(line))
        if found is None:
            return self
        keras = KerasProgress.at_epoch(self.keras, int(found[1]), int(found[2] or 0))
        return replace(self, metrics=bounded({**self.metrics, **self._position(keras)}), keras=keras)

    def _position(self, keras: KerasProgress) -> dict[str, float]:
        """Epoch and step as metrics, unless the program prints its own step."""
        counted = float(self.keras.step) if self.keras is not None else 0.0
        said = self.metrics.get("step")
        step = {} if said not in (None, counted) or (said is None and not keras.step) else {"step": float(keras.step)}
        return {"epoch": float(keras.epoch), **step}


def _distinct(lines: Sequence[str]) -> Sequence[str]:
    """The relevant lines. All lines are relevant if some of them quote source code.

    Of lines that differ only in numbers, the first decides the order of names, and the last has the latest value.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, line in enumerate(lines):
        if "=" in line or ": " in line or "Epoch " in line or "aving " in line or "aved " in line:
            if "most recent call" in line or 'File "' in line or "Warning: " in line:
                return lines
            shape = _ANY_NUMBER.sub("0", line) if len(line) <= _LONGEST else line
            first.setdefault(shape, number)
            last[shape] = number
        elif "most recent call" in line or 'File "' in line:
            return lines
    return [lines[number] for number in sorted({*first.values(), *last.values()})]


def bounded(metrics: Mapping[str, float]) -> Mapping[str, float]:
    """The first ``MOST_NAMES`` of the metrics."""
    return metrics if len(metrics) <= MOST_NAMES else dict(list(metrics.items())[:MOST_NAMES])


def combine_progress(parts: Iterable[Progress]) -> Progress:
    """Merge progress. Each metric comes from the first part that has it, so the leader must be first."""
    metrics: dict[str, float] = {}
    checkpoint = result = ""
    keras = None
    for part in parts:
        metrics = {**metrics, **part.metrics, **metrics}
        checkpoint, result, keras = checkpoint or part.checkpoint, result or part.result, keras or part.keras
    return Progress(bounded(metrics), checkpoint, result=result, keras=keras)


def _last_drawing(line: str) -> str:
    """The line without colours. If a progress bar overwrote itself, the last state of the bar."""
    text = line
    if "\r" in text or "\b" in text:
        text = next((one for one in reversed(re.split(r"[\r\b]+", text)) if one.strip()), "")
    text = text[:_LONGEST_HISTORY]
    return _ESCAPE.sub("", text) if "\x1b" in text else text


def _metrics(text: str) -> Iterator[tuple[str, float]]:
    if "float" in text:
        text = _FLOAT_CALL.sub(r"\1", text)
    if "{" in text and (found := _DICT.search(text)):
        items = _DICT_ITEM.findall(found[0])
        if any(_MEASURES.fullmatch(_last_word(name)) for name, _ in items):
            yield from ((name, float(value)) for name, value in items)
        return
    text = text[:_LONGEST]
    if _KERAS_LINE.match(text) and (found_pairs := _KERAS_PAIR.findall(text)):
        yield from ((name, float(value)) for name, value in found_pairs)
    elif found := _FINAL_LOSS.search(text):
        yield "loss", float(found[1])
    elif found := _STEP_RATE.search(text):
        yield found[1], float(found[2])
    elif not _of_library(text) and not _CODE.match(text):
        if ":" in text:
            yield from _measures(text)
        if "=" in text:
            yield from _pairs(_outside_calls(text))


def _of_library(text: str) -> bool:
    if _LIBRARY_BEGIN.match(text) or _LIBRARY_FILE.search(text):
        return True
    return any(hint in text for hint in _LIBRARY_HINTS) and _LIBRARY_WORDS.search(text) is not None


def _measures(text: str) -> Iterator[tuple[str, float]]:
    for found in _COLON_VALUE.finditer(text):
        label = _COLON_NAME.search(text[max(0, found.start() - _LONGEST_NAME) : found.start()])
        if label is not None and (name := _measure(_SEPARATORS.split(label[0].lower()))):
            yield name, float(found[1])


def _measure(words: Sequence[str]) -> str:
    """The name of the measure at the end of the words, such as ``test_accuracy``; "": no measure."""
    *before, last = words
    if not _MEASURES.fullmatch(last) and last != "rate":
        return ""
    if last in _COUNTERS:
        return "" if before not in ([], ["global"]) else "_".join(words)
    begin = len(before)
    while begin and _QUALIFIERS.fullmatch(before[begin - 1]):
        begin -= 1
    return "" if last in _QUALIFIED and begin == len(before) else "_".join(words[begin:])


def _pairs(text: str) -> Iterator[tuple[str, float]]:
    for name, value in _PAIR.findall(text):
        number = float(value)
        if _may_be_metric(name, abs(number) > 1e9):
            yield name.rstrip("/-|"), number


@lru_cache(maxsize=1024)
def _may_be_metric(name: str, huge: bool) -> bool:
    word = _last_word(name)
    if _NO_MEASURES.fullmatch(word) or name == "checkpoint" or name.startswith("num_"):
        return False
    if huge and _CLOCKS.fullmatch(word):  # seconds since 1970
        return False
    # A name in capitals is an environment variable, unless its last word is a measure.
    return not (name.isupper() and len(name) > 1) or _MEASURES.fullmatch(word) is not None


def _last_word(name: str) -> str:
    return _WORDS.split(name.rstrip("/-|_"))[-1].lower()


def _outside_calls(text: str) -> str:
    """The text without arguments of calls, and without representations of objects.

    A call may extend over several lines. A representation is a text such as ``<tf.Tensor: shape=(), numpy=1.0>``.
    """
    if "(" in text or ")" in text:
        kept, begun, calls = [], 0, list[bool]()
        for found in _CALLS.finditer(text):
            if found[0] != ")":
                if len(found[0]) == 2 and not any(calls):
                    kept.append(text[begun : found.end()])
                calls.append(len(found[0]) == 2)
                continue
            if not calls:
                kept, begun = [], found.end()  # the text before it is part of a call
            elif calls.pop() and not any(calls):
                begun = found.start()
        text = "".join(kept) + ("" if any(calls) else text[begun:])
    return _REPR.sub("", text) if "<" in text else text
