"""The end of a log as evidence: the exception first, then its location, then the lines before it."""

from __future__ import annotations

import time

import pytest

from tf_dist.core.diagnostics.log_end import failure_reasons, log_evidence

FRAMES = """\
step=0 loss=0.9
step=1 loss=0.8
step=2 loss=0.7
no luck today
Traceback (most recent call last):
  File "/home/me/train.py", line 9, in <module>
    model.fit(data)
    ^^^^^^^^^^^^^^^
  File "/home/me/.venv/lib/python3.11/site-packages/keras/src/utils/traceback_utils.py", line 122, in error_handler
    raise e.with_traceback(filtered_tb) from None
ValueError: shapes (3,) and (4,) differ
""".splitlines()


def test_exception_comes_first_then_own_frame_then_last_lines() -> None:
    assert log_evidence(FRAMES).splitlines() == [
        "ValueError: shapes (3,) and (4,) differ",
        '  File "/home/me/train.py", line 9, in <module>',
        "    model.fit(data)",
        "its last lines:",
        "  step=2 loss=0.7  (3 lines like this)",
        "  no luck today",
    ]
    assert log_evidence(FRAMES).splitlines()[0] == "ValueError: shapes (3,) and (4,) differ"


def test_exception_message_with_open_brackets_continues() -> None:
    log = [
        *FRAMES[4:-1],
        "ValueError: Attempt to convert a value (PerReplica:{",
        "  0: <tf.Tensor: shape=(1, 4), dtype=float32, numpy=",
        "array([[-0.95553464, -0.22487675,  0.04660891,  0.57685536]],",
        "      dtype=float32)>",
        "}) with an unsupported type (<class 'PerReplica'>) to a Tensor.",
        "ends with (",
    ]
    whole = (
        "ValueError: Attempt to convert a value (PerReplica:{ … }) with an unsupported type (<class 'PerReplica'>) to "
    )
    assert log_evidence(log).splitlines()[0] == f"{whole}a Tensor."
    assert log_evidence(log).splitlines()[-2:] == ["its last lines:", "  ends with ("]
    assert log_evidence([*FRAMES[4:-1], "ValueError: no (", "step=1"]).splitlines()[0] == "ValueError: no ("


def test_last_exception_of_chain_counts() -> None:
    chained = [
        *FRAMES[4:],
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "/home/me/train.py", line 12, in <module>',
        "    stop()",
        "RuntimeError: stopped",
    ]
    assert log_evidence(chained).splitlines() == [
        "RuntimeError: stopped",
        '  File "/home/me/train.py", line 12, in <module>',
        "    stop()",
    ]


@pytest.mark.parametrize(
    "head",
    [
        "Exception ignored in: <function Pool.__del__ at 0x7f>",
        "Exception ignored in atexit callback: <function stop at 0x7f>",
        "Exception ignored while calling deallocator <function Pool.__del__ at 0x7f>:",  # since Python 3.14
    ],
)
def test_exception_that_python_ignored_at_exit_is_not_the_reason(head: str) -> None:
    ignored = [head, *FRAMES[4:-1], "OSError: closed"]
    assert log_evidence([*FRAMES, *ignored]).splitlines()[0] == "ValueError: shapes (3,) and (4,) differ"


@pytest.mark.parametrize(
    "log",
    [
        ["Exception ignored in: <function Pool.__del__ at 0x7f>", *FRAMES[4:]],
        FRAMES[4:7],  # cut off
    ],
    ids=["ignored", "cut off"],
)
def test_log_of_unusable_tracebacks_is_unchanged(log: list[str]) -> None:
    assert log_evidence(log).splitlines() == log


def test_colours_and_overwritten_text_are_left_out() -> None:
    log = [
        "1/9 [>...]\r9/9 [===]\r",
        "Traceback (most recent call last):",
        '  File \x1b[35m"/app/train.py"\x1b[0m, line \x1b[35m3\x1b[0m, in \x1b[35m<module>\x1b[0m',
        "    \x1b[31m1\x1b[0m\x1b[1;31m/\x1b[0m\x1b[31m0\x1b[0m",
        "    \x1b[31m~\x1b[0m\x1b[1;31m^\x1b[0m\x1b[31m~\x1b[0m",
        "\x1b[1;35mZeroDivisionError\x1b[0m: \x1b[35mdivision by zero\x1b[0m",
    ]
    assert log_evidence(log).splitlines() == [
        "ZeroDivisionError: division by zero",
        '  File "/app/train.py", line 3, in <module>',
        "    1/0",
        "its last lines:",
        "  9/9 [===]",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-27 10:00:00.123456: W tensorflow/core/data/root_dataset.cc:345] autotune is slow",
        "I0000 00:00:1795799021.567839       2 port.cc:153] oneDNN custom operations are on.",
        "Node: 'mean_squared_error/SquaredDifference'",  # before the reason of a failed graph
    ],
)
@pytest.mark.parametrize("at", range(5, len(FRAMES)))
def test_line_of_native_library_does_not_end_traceback(line: str, at: int) -> None:
    assert log_evidence([*FRAMES[:at], line, *FRAMES[at:]]) == log_evidence(FRAMES)


def test_stack_of_crashed_program_has_no_exception() -> None:
    log = [
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007f (most recent call first):",
        '  File "/app/train.py", line 3 in f',
        '  File "/app/train.py", line 9 in <module>',
        "",
        "Extension modules: numpy (total: 13)",
    ]
    assert log_evidence(log).splitlines() == log


def test_truncated_traceback_is_recognized() -> None:
    assert log_evidence(FRAMES[5:]).splitlines()[0] == "ValueError: shapes (3,) and (4,) differ"


def test_tensors_and_start_up_lines_of_libraries_are_left_out() -> None:
    log = [
        "I0000 00:00:1795799021.567839       2 port.cc:153] oneDNN custom operations are on.",
        "2026-11-27 10:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] optimized",
        "  0: <tf.Tensor: shape=(16, 4), dtype=float32, numpy=",
        "array([[-0.95553464, -0.22487675,  0.04660891,  0.57685536],",
        "       [ 0.62854356,  2.464634  ,  0.69748324, -0.6189198 ],",
        "       [-2.0414138 ,  0.9798925 ,  0.10141366, -0.43349522]],",
        "      dtype=float32)>",
        "}) with an unsupported type (<class 'PerReplica'>) to a Tensor.",
        f"weights {[[0.25] * 40] * 3}",
    ]
    assert log_evidence(log).splitlines() == [
        "  0: <tf.Tensor: shape=(16, 4), dtype=float32, numpy=",
        "}) with an unsupported type (<class 'PerReplica'>) to a Tensor.",
        "weights [[0.25, 0.25, 0.25, 0.…]",
    ]


def test_log_without_exception_is_unchanged() -> None:
    assert log_evidence(["one", "out of luck"]) == "one\nout of luck"
    assert log_evidence([]) == ""


def test_redrawn_progress_bar_is_one_line() -> None:
    bars = [f" {n}/100 {'━' * n}{'─' * (100 - n)} {n}s 10ms/step - loss: 0.{n}" for n in range(10, 60)]
    assert len(log_evidence(bars).splitlines()) == 1


@pytest.mark.parametrize("complete", [True, False], ids=["closed", "cut off"])
def test_tensor_of_many_lines_in_an_exception_is_left_out(complete: bool) -> None:
    row = "         -7.05255687e-01, -8.88641357e-01,  1.43382621e+00,"
    log = [
        "Traceback (most recent call last):",
        '  File "/home/me/train.py", line 8, in <module>',
        "    model.fit(x, y)",
        "ValueError: cannot convert (PerReplica:{",
        "  0: <tf.Tensor: shape=(64, 20), dtype=float32, numpy=",
        "array([[ 1.49616754e+00, -1.03320932e+00,",
        *[row] * 600,
        "         -7.00536311e-01, -1.83990204e+00]], dtype=float32)>",
        *(["}) with an unsupported type to a Tensor."] if complete else []),
    ]
    told = log_evidence(log)
    assert told.startswith("ValueError: cannot convert (PerReplica:{")
    assert "1.43382621e+00" not in told
    if complete:
        assert told.splitlines()[0].endswith("… }) with an unsupported type to a Tensor.")
        assert "its last lines" not in told


@pytest.mark.parametrize("text", ["[", "[1", "[1, ", "1[", "[[1] ", "x", " ", "\r", "\x1b[", "1, ", "E1", "a Warning:"])
def test_long_lines_are_read_in_time(text: str) -> None:
    line = text * (1_000_000 // len(text))
    before = time.process_time()
    log_evidence([line, "Traceback (most recent call last):", line])
    failure_reasons([line] * 4)
    assert time.process_time() - before < 2
