"""Every message is one line, whatever the names and texts in it hold."""

import pickle

import pytest

from traceanalyzer.errors import MalformedInput, MissingData, TraceAnalyzerError


@pytest.mark.parametrize(
    "error",
    [
        MissingData("rank0.json (\x1b[31m\nnccl\x85\u2028): no kernel"),
        MalformedInput("a\r\nb.json", "no event", where="byte 7\x00", hint="record\tagain"),
    ],
)
def test_a_message_is_one_line_without_control_characters(error: TraceAnalyzerError) -> None:
    assert str(error).isprintable()
    assert "no " in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - made here
