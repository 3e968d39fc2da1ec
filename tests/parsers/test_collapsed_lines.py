"""The grammar of collapsed stacks, line by line, and damaged files."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from conftest import ROOT
from hypothesis import example, given, strategies as st
from stack_files import samples, stack_texts

from traceanalyzer import InputError, read, schema
from traceanalyzer.errors import UnknownFormat
from traceanalyzer.parsers.collapsed import text
from traceanalyzer.parsers.collapsed.lines import Lines
from traceanalyzer.parsers.collapsed.text import Dialect, split, split_austin
from traceanalyzer.parsers.source import Source

SEEDS = [
    *(path.read_bytes()[:3000] for path in sorted((ROOT / "fixtures/py_spy").glob("*.raw.txt"))),
    *(path.read_bytes() for path in sorted((ROOT / "fixtures/malformed_stacks").glob("*.txt"))),
]
TOKENS = (b";", b" ", b"\n", b'"', b'process 1:"', b"thread (1): ", b"thread (0xff)", b"(", b")")
TOKENS += (b":1)", b"#", b"//", b"\0", b"\xff", b"9" * 30, b".5", b"\r\n", b'";', b"P1;T2;", b"\t")
CASES = 500
#: Seconds a damaged file of a few KB may take; generous for busy machines.
PATIENCE = 5.0


def parsed(tmp_path, content):
    path = tmp_path / "stacks.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read(path)


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("f (a.py:3)", ("f", "a.py", 3)),
        ("f (a.py)", ("f", "a.py", None)),
        ("f", ("f", None, None)),
        ("<module> (dir (1)/x; y.py:12)", ("<module>", "dir (1)/x; y.py", 12)),
        ("<module> (dir (1)/x; y.py)", ("<module>", "dir (1)/x; y.py", None)),
        (r"f (C:\a b\c.py:3)", ("f", r"C:\a b\c.py", 3)),
        ("f (<frozen importlib._bootstrap>:241)", ("f", "<frozen importlib._bootstrap>", 241)),
        ("f (<key>.5 from /a.py:2 in wrap:4)", ("f", "<key>.5 from /a.py:2 in wrap", 4)),
        ("operator new (libstdc++.so.6)", ("operator new", "libstdc++.so.6", None)),
        ("a::(anonymous namespace)::f (lib.so)", ("a::(anonymous namespace)::f", "lib.so", None)),
        ("f (int) (lib.so)", ("f (int)", "lib.so", None)),
        ("0x7f15 (?)", ("0x7f15", None, None)),
        ("f (a.py:99999999999)", ("f", "a.py:99999999999", None)),
        ("f (a.py:007)", ("f", "a.py:007", None)),
        ("f ()", ("f ()", None, None)),
        ("f(int)", ("f(int)", None, None)),
        ("", ("", None, None)),
    ],
)  # fmt: skip
def test_a_frame_is_split_where_its_name_ends(frame, expected):
    assert tuple(split(frame)) == expected


def test_austin_frames_end_in_function_and_line():
    assert tuple(split_austin(r"C:\a:b.py:f:12")) == ("f", r"C:\a:b.py", 12)
    assert tuple(split_austin("idle")) == ("idle", None, None)


@pytest.mark.parametrize(
    ("line", "stack", "pid", "tid", "label"),
    [
        (b'process 1:"python a.py";main (a.py:1) 3', "main (a.py:1)", 1, None, "python a.py"),
        (b'process 1:"a; b";process 2:"c";thread (3): t;main 3', "main", 2, 3, "t"),
        (b'process 1:"";main (a.py:1) 3', "main (a.py:1)", 1, None, ""),
        (b'process 1:"x="a;b";";main (a.py:1) 3', "main (a.py:1)", 1, None, 'x="a;b";'),
        (b'process 1:"a" 3', "", 1, None, "a"),
        (b'process 1:"a";thread (2) 3', "", 1, 2, None),
        (b'process 1:"a";main 3', "main", 1, None, "a"),
        (b"thread (0x7F15A): io;main (a.py:1) 3", "main (a.py:1)", None, 0x7F15A, "io"),
        (b"thread (7): a; b (c) 9;main (a.py:1) 3", "main (a.py:1)", None, 7, "a; b (c) 9"),
        (b"thread (0xFFFFFFFFFFFFFFFF);main 3", "main", None, -1, None),
        (b"main;thread (1);process 3", "main;thread (1);process", None, None, None),
    ],
)
def test_labels_are_not_frames(line, stack, pid, tid, label, tmp_path):
    trace = parsed(tmp_path, line + b"\n")
    assert samples(trace) == [(stack, 3.0, pid, tid)]
    of_lane = trace.lanes.filter(
        trace.lanes["tid"].is_null() if tid is None else trace.lanes["tid"] == tid
    )
    assert of_lane["label"].to_list()[-1:] == ([] if pid is tid is None else [label])


@pytest.mark.parametrize(
    ("stack", "frames"),
    [
        ("f (a;b.py:1);g", 2),
        ("f (a;b;c.py:1);g (d;e.py:2)", 2),
        ("x;impl Default for [T; _]>::default;y", 3),
        ("f(;g;h", 3),
        ("f (a;" + "b;" * 40 + "c.py:1)", 42),  # not looked for so far
    ],
)
def test_semicolon_inside_brackets_does_not_split(stack, frames, tmp_path):
    trace = parsed(tmp_path, f"{stack} 2\n")
    assert trace.stacks.height == frames
    assert stack_texts(trace) == [stack]


@pytest.mark.parametrize(
    ("content", "weights"),
    [
        (b"a;b 1\r\na;c 2\r\n", [1, 2]),
        (b"\xef\xbb\xbfa;b 1\n", [1]),
        ("a;é 1\na;c 2\n".encode("utf-16"), [1, 2]),
        ("a;é 1\n".encode("utf-16-be").join([b"\xfe\xff", b""]), [1]),
        ("a;é 1\na;c 2\n".encode("utf-32"), [1, 2]),
        ("main;b 1\na;c 2\n".encode("utf-16-le"), [1, 2]),
        (b"a;b 1\ra;c 2\r", [1, 2]),
        (b"a;b 1\r" * 9, [1] * 9),
        (b"a;b 1.5\na;c .25\na;d 2.\na;e 1e3\n", [1.5, 0.25, 2, 1000]),
        (b"a;b\t7\na;c  8 \n", [7, 8]),
        (b"a;b 9007199254740993\n", [9007199254740992]),
    ],
)
def test_encodings_line_ends_and_counts(content, weights, tmp_path):
    trace = parsed(tmp_path, content)
    assert trace.events["weight"].to_list() == weights
    assert trace.stacks["name"][0] in ("a", "main")
    assert "\r" not in "".join(stack_texts(trace))
    assert trace.issues.is_empty()


@pytest.mark.parametrize(
    ("content", "unit"),
    [
        ("python;main;gemm 812349911\npython;main;copy 1234001\npython;_start 1\n", None),
        ("ab;read_[k] 1010101\nab;write_[k] 2020202\n", None),
        ("ab;f 500000 1010101\nab;g 2020202 1010101\n", None),
        ("python;main;gemm 31\npython;main;copy 6\npython;_start 1200\n", "samples"),
        ("main (a.py:1);f (a.py:2) 81234\nmain (a.py:1);g (a.py:3) 31860\n", "samples"),
        ("main (a.py);memcpy (libc.so.6) 81234\nmain (a.py) 31860\n", "samples"),
        ('process 7:"python a.py";main 81234\nprocess 7:"python a.py";f 31860\n', "samples"),
    ],
)
def test_large_counts_without_files_are_no_samples(
    content: str, unit: str | None, tmp_path: Path
) -> None:
    assert parsed(tmp_path, content).meta.weight_unit == unit


def test_ambiguous_text_is_not_detected(tmp_path):
    path = tmp_path / "numbers.txt"
    path.write_bytes(b"main 5\nother 6\n")
    with pytest.raises(UnknownFormat):
        read(path)
    assert read(path, format="collapsed").events["weight"].to_list() == [5, 6]


AUSTIN = (
    b"# austin: 3.6.0\n# interval: 100\n# mode: wall\n\n"
    b"P7;T0x1f;/a.py:main:3;/b.py:f:9 250\nP7;T0:31 5\n"
)


def test_austin_counts_microseconds(tmp_path):
    trace = parsed(tmp_path, AUSTIN)
    assert samples(trace) == [("", 5e3, 7, 31), ("main (/a.py:3);f (/b.py:9)", 250e3, 7, 31)]
    assert trace.meta.weight_unit == "ns"


def test_profiler_of_python_counts_samples(tmp_path):
    text = b"tid:31;<frozen runpy>:_run_code:87;a.py:C.f:9;<GC> 2500\ntid:31;a.py:main:3 1700\n"
    trace = parsed(tmp_path, text)
    assert samples(trace) == [
        ("_run_code (<frozen runpy>:87);C.f (a.py:9);<GC>", 2500, None, 31),
        ("main (a.py:3)", 1700, None, 31),
    ]
    assert trace.meta.weight_unit == "samples"


def test_austin_full_and_memory_modes(tmp_path):
    full = parsed(tmp_path, b"# mode: full\nP7;T1;/a.py:main:3 250,0,-12\nP7;T1;/a.py:f:4 10,1,9\n")
    assert full.events["weight"].to_list() == [250e3, 10e3]
    memory = parsed(tmp_path, AUSTIN.replace(b"wall", b"memory"))
    assert (memory.meta.weight_unit, memory.events["weight"].sum()) == ("bytes", 255.0)


@pytest.mark.parametrize("end", [b"", b"\n", b"\na;c 2\n", b"\na;c 2\n" * 9])
def test_a_line_longer_than_any_stack_is_a_bad_line(end, tmp_path, monkeypatch):
    monkeypatch.setattr(text, "MAX_LINE", 50)
    monkeypatch.setattr(text, "_CHUNK", 10)
    path = tmp_path / "long.txt"
    path.write_bytes(b"a;b 1\n" + b"x;" * 100 + b"y 5" + end)
    given = Source(path)
    blocks = given.blocks
    monkeypatch.setattr(given, "blocks", lambda size, progress: blocks(size, progress, step=10))
    lines = [line for chunk in text.chunks(given, None) for line in chunk if line]
    assert lines == [b"a;b 1", text.TOO_LONG, *[b"a;c 2"] * end.count(b"2")]


@pytest.mark.parametrize("lines", [b"a;b 1\n" * 3, b""])
def test_a_count_of_a_million_digits_is_a_bad_line(lines, tmp_path):
    path = tmp_path / "digits.txt"
    path.write_bytes(lines + b"a;c " + b"7" * 1_000_000 + b"\n")
    begun = time.monotonic()
    if lines:
        assert read(path).issues["code"].to_list() == ["bad-line"]
    else:
        with pytest.raises(InputError):
            read(path, format="collapsed")
    assert time.monotonic() - begun < PATIENCE


LINE = st.one_of(
    st.from_regex(r"[a-c();\[ ]{0,8} \d{1,3}", fullmatch=True),
    st.sampled_from(["", "# x", "bad", "a;b 1.5", " 3", "a;b 2", 'process 1:"x', 'y";f (z) 3']),
    st.sampled_from(['process 1:"x";a (b.py:1) 2', "thread (4): q; r;a 3", "//x", "a;b x"]),
)


@given(st.lists(LINE, max_size=12), st.lists(st.integers(0, 12), max_size=3))
@example(['process 1:"x', " 0", 'y";f (z) 3', 'process 1:"x";a (b.py:1) 2'], [])
@example(['process 1:"x', 'y";f (z) 3', "thread (4): q; r;a 3"], [1])
@example([" 0", 'process 1:"x', " 0", "thread (4): q; r;a 3", " 0", 'y";f (z) 3'], [])
def test_batches_equal_single_lines(lines, cuts):
    """The same samples, whichever lines come together and whether they are taken all at once."""
    data = [line.encode() for line in lines]
    results = []
    for labelled in (False, True):
        for places in ([], sorted(cuts)):
            reader = Lines(Dialect(labelled=labelled))
            for start, end in zip([0, *places], [*places, len(data)], strict=True):
                reader.add(data[start:end])
            reader.add([], last=True)
            frames = [name for name, _ in sorted(reader.numbers.items(), key=lambda item: item[1])]
            stacks = [frames[number] for number in reader.frames]
            weights = list(reader.weights)
            lane_keys = list(reader.lanes.number)
            lanes = [lane_keys[lane] for lane in reader.lane_of]
            kept = (stacks, list(reader.lengths), weights, lanes, reader.bad, reader.first_bad)
            names = (reader.lanes.commands, reader.lanes.parents, reader.lanes.threads)
            results.append((kept, names, sorted(map(str, lane_keys))))
    assert all(result == results[0] for result in results)


def damaged(chance):
    content = bytearray(chance.choice(SEEDS))
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(content) + 1)
        length = chance.choice((1, 5, 60, 500))
        match chance.randrange(5):
            case 0:
                content[at:at] = chance.choice(TOKENS) * chance.choice((1, 1, 1, 300))
            case 1:
                del content[at : at + length]
            case 2:
                content[at : at + 1] = bytes((chance.randrange(256),))
            case 3:
                content[at:at] = content[at : at + length] * chance.choice((1, 1, 40))
            case _:
                other = chance.choice(SEEDS)
                content[at:at] = other[:length]
    return bytes(content)


@pytest.mark.matrix
def test_damaged_files_are_read_or_rejected_in_one_line(tmp_path, thorough):
    path = tmp_path / "damaged.txt"
    chance = random.Random(11)  # noqa: S311 - no secret
    outcomes = set()
    for _ in range(CASES if thorough else CASES // 4):
        path.write_bytes(damaged(chance))
        begun = time.monotonic()
        try:
            trace = read(path, format="collapsed")
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
            outcomes.add("refused")
        else:
            assert schema.check(trace.tables) == []
            assert trace.events["weight"].is_finite().all()
            outcomes.add("issues" if trace.issues.height else "read")
        assert time.monotonic() - begun < PATIENCE
    assert outcomes == {"refused", "issues", "read"}
