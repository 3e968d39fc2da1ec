"""Foreign, damaged and malicious pickles are rejected in limited memory."""

from __future__ import annotations

import pickle
import pickletools
import random
import re
import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from pickles import (
    EVENT,
    FRAME,
    agree,
    hand,
    like_torch,
    new,
    outcome,
    read,
    refusal,
    snapshot,
    text,
)

from traceanalyzer.parsers.memory_snapshot import machine, unpickler
from traceanalyzer.parsers.memory_snapshot.unpickler import Problem, Refused

compiled = pytest.mark.skipif(machine._machine is None, reason="built without a compiler")

# --- attacks ---------------------------------------------------------------------------------

FOREIGN = {
    "REDUCE": b"cos\nsystem\n(K\x01tR",
    "STACK_GLOBAL": text("os") + text("system") + b"\x93",
    "BUILD": b"}}b",
    "INST": b"(ios\nsystem\n",
    "OBJ": b"(o",
    "NEWOBJ": b"))\x81",
    "EXT1": b"\x82\x01",
    "PERSID": b"Pid\n",
    "BINPERSID": b"K\x01Q",
    "LONG4": b"\x8b\xff\xff\xff\x7f",
    "BINUNICODE8": b"\x8d" + b"\xff" * 7 + b"\x7f",
    "BINBYTES": b"B\x01\x00\x00\x00x",
    "POP": b"K\x010",
    "DUP": b"K\x012",
    "BYTEARRAY8": b"\x96" + b"\x01" * 8,
    "FROZENSET": b"(\x91",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_code_opcodes_are_rejected(name):
    data = hand(FOREIGN[name])
    what, offset = outcome(data)
    assert outcome(data, slow=True) == (what, offset)
    displayed = "GLOBAL" if name == "REDUCE" else name
    assert what.startswith(f"opcode {displayed}")
    assert what.endswith("does not occur in memory snapshots")
    code = {op.name: op.code.encode("latin-1") for op in pickletools.opcodes}[displayed]
    assert data[offset : offset + 1] == code


def test_only_known_opcodes_are_accepted():
    genuine = re.findall(
        r"\w+",
        "PROTO FRAME STOP MARK MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET EMPTY_DICT EMPTY_LIST "
        "EMPTY_TUPLE SETITEM SETITEMS APPEND APPENDS BININT BININT1 BININT2 LONG1 SHORT_BINUNICODE "
        "BINUNICODE NEWTRUE NEWFALSE NONE TUPLE TUPLE1 TUPLE2 TUPLE3 BINFLOAT",
    )
    codes = {op.name: ord(op.code) for op in pickletools.opcodes}
    for slow in (False, True):
        accepted = []
        for code in range(256):
            result = outcome(b"\x80\x04" + bytes([code]), slow=slow)
            if not isinstance(result, tuple) or "does not occur" not in result[0]:
                accepted.append(code)
        assert accepted == sorted(codes[name] for name in genuine)


WRONG = {
    "memo beyond what was stored": (b"Nr" + struct.pack("<I", 1 << 28), "memo index 268435456 is"),
    "memo beyond the file": (b"Nr" + struct.pack("<I", 900), "memo index 900 is out of range"),
    "memo twice": (b"Nq\x00q\x00", "memo index 0 is stored twice"),
    "memo over another": (b"N\x94Nq\x00", "memo index 0 is stored twice"),
    "a container twice in the memo": (b"]\x94\x94", "a list or dict is stored twice"),
    "memo never stored": (b"h\x03", "memo index 3 was never stored"),
    "memo of a gap": (b"Nq\x02h\x01", "memo index 1 was never stored"),
    "a long integer": (b"\x8a\xff", "an integer of 255 bytes"),
    "an integer of ten bytes": (b"\x8a\x0a" + b"\0" * 10, "an integer of 10 bytes"),
    "a text of 4 GB": (b"X\xff\xff\xff\xff", "a text of 4294967295 bytes"),
    "a text just too long": (b"X" + struct.pack("<I", (1 << 24) + 1), "a text of 16777217 bytes"),
    "a second PROTO": (b"\x80\x04", "a second PROTO"),
    "STOP first": (b"", "STOP with 0 values"),
    "STOP with two": (b"NN", "STOP with 2 values"),
    "STOP under a mark": (b"N(", "STOP with 1 values"),
    "APPENDS without a mark": (b"]Ne", "opcode APPENDS ('e') without a MARK"),
    "APPENDS to a mark": (b"]((Ne", "opcode APPENDS ('e') with too few values"),
    "APPENDS to nothing": (b"(Ne", "opcode APPENDS ('e') with too few values"),
    "SETITEMS to nothing": (b"(NNu", "opcode SETITEMS ('u') with too few values"),
    "TUPLE without a mark": (b"Nt", "opcode TUPLE ('t') without a MARK"),
    "TUPLE2 across a mark": (b"N(N\x86", "opcode TUPLE2 with too few values"),
    "TUPLE3 of two": (b"NN\x87", "opcode TUPLE3 with too few values"),
    "MEMOIZE of a mark": (b"N(\x94", "opcode MEMOIZE with too few values"),
    "BINPUT of nothing": (b"q\x00", "opcode BINPUT ('q') with too few values"),
    "LONG_BINPUT of nothing": (b"r\0\0\0\0", "opcode LONG_BINPUT ('r') with too few values"),
    "APPEND across a mark": (b"](Na", "opcode APPEND ('a') with too few values"),
    "SETITEM across a mark": (b"}N(Ns", "opcode SETITEM ('s') with too few values"),
    "SETITEMS with an odd count": (b"}(NNNu", "a key without a value"),
    "APPEND to a dict": (b"}Na", "an item without an open list"),
    "APPENDS to a number": (b"K\1(Ne", "an item without an open list"),
    "SETITEM to a list": (b"]NNs", "a pair without an open dict"),
    "SETITEM to a row": (EVENT + b"NNs", "a pair without an open dict"),
    "APPEND to a tuple": (b")Na", "an item without an open list"),
    "a list used twice": (b"](](]\x94(Neh\x00ee", "a list or row is used twice"),
    "a dict used twice": (b"](}\x94(NNuh\x00e", "a list or row is used twice"),
    "a row used twice": (b"](" + EVENT + b"\x94h\x00e", "a list or row is used twice"),
    "a list in itself": (b"]\x94h\x00a", "a list or dict is filled after use"),
    "a list in itself, later": (b"]\x94(h\x00Ne", "a list or dict is filled after use"),
    "a dict in itself": (b"}\x94Nh\x00s", "a list or dict is filled after use"),
    "a stack in itself": (b"]\x94(" + FRAME + FRAME + b"eh\x00a", "a list or dict is filled after"),
    "a fetched stack, filled": (b"]\x94" + FRAME + b"ah\x00" + FRAME + b"a", "an item without"),
    "a tuple of a list": (b"](Ne\x85", "a tuple with nested containers"),
    "a tuple of a tuple": (b"N\x85\x85", "a tuple with nested containers"),
    "a long tuple": (b"(" + b"N" * 65537 + b"t", "a tuple of 65537 values"),
    "a long stack": (FRAME + b"\x94](" + b"h\x00" * 65537 + b"e", "a stack of more"),
    "marks": (b"(" * 1001, "more than 1000 nested containers"),
}


#: Harmless in Python's unpickler.
HARMLESS = {
    *("a container twice in the memo", "a tuple of a list", "a tuple of a tuple"),
    "SETITEM to a row",
}


@compiled
@pytest.mark.parametrize("name", WRONG)
def test_invalid_pickles_are_rejected(name):
    body, message = WRONG[name]
    what, offset = refusal(hand(body))
    assert what.startswith(message)
    assert 2 <= offset <= len(body) + 2
    assert outcome(hand(body), 1) == (what, offset)


@pytest.mark.matrix
@pytest.mark.parametrize("name", sorted(WRONG.keys() - HARMLESS))
def test_invalid_pickles_are_rejected_without_extension(name):
    body, message = WRONG[name]
    result = outcome(hand(body), slow=True)
    assert isinstance(result, tuple)
    what, offset = result
    assert offset is None or 2 <= offset <= len(body) + 2
    # it refuses some at a later opcode
    assert what.startswith(
        (message, "a list or dict is filled", "a list or row is used", "STOP with")
    )
    assert outcome(hand(body), 1, slow=True) == result


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"}.", "the first byte is 125, not the start of a pickle"),
        (b".", "the first byte is 46, not the start of a pickle"),
        (b"\x1f\x8b\x08", "the first byte is 31, not the start of a pickle"),
    ],
)
def test_other_beginnings_are_rejected(data, message):
    for slow in (False, True):
        assert outcome(data, slow=slow) == (message, 0)


def test_other_protocols_are_rejected():
    for data, number in ((b"\x80\x01N.", 1), (b"\x80\x06N.", 6)):
        assert outcome(data) == (f"unsupported pickle protocol {number}", 0)
        assert outcome(data, slow=True) == (f"unsupported pickle protocol {number}", 0)


@compiled
def test_machine_stays_rejected():
    reader = new()
    for again in range(3):
        with pytest.raises(Refused, match="REDUCE") as caught:
            reader.feed(b"\x80\x04NR." if not again else b"N.")
        assert caught.value.offset == 3
    with pytest.raises(Refused, match="REDUCE"):
        reader.close()


HUGE = {
    "a million values": b"N" * 1_000_000,
    "lists a million deep": b"]" * 1_000_000 + b"a" * 999_999,
    "dicts within dicts": b"}N" * 500_000 + b"N" + b"s" * 500_000,
    "open lists a million deep": b"]\x94" * 500_000,
    "tuples of tuples": b"NNN\x87" + b"\x85" * 100_000,
    "empty rows": b"](" + (b"}(" + text("action") + b"Nu") * 60_000 + b"e",
    "single appends to a stack": FRAME + b"\x94]" + b"\x94" + b"h\x00a" * 200_000,
    "the same stacks again and again": (
        FRAME + b"\x94" + (b"](" + b"h\x00" * 800 + b"e" + b"h\x00a" * 800) * 30
    ),
    "a memo with gaps": b"N" * 500_000
    + b"".join(b"r" + struct.pack("<I", 1024 * i) for i in range(1, 480)),
}


@compiled
@pytest.mark.parametrize("name", HUGE)
def test_bombs_stay_small(name):
    data = hand(HUGE[name])
    reader = new()
    try:
        for start in range(0, len(data), 1 << 16):
            reader.feed(data[start : start + (1 << 16)])
            assert reader.allocated_bytes <= 2 * min(start + (1 << 16), len(data)) + (32 << 20)
        reader.close()
    except Refused:
        assert reader.allocated_bytes <= 2 * len(data) + (32 << 20)


@pytest.mark.sample(6)
@compiled
@pytest.mark.parametrize("name", HUGE)
def test_bombs_are_read_or_rejected_by_both(name):
    data = hand(HUGE[name])
    assert agree(outcome(data), outcome(data, 1 << 16, slow=True))


@compiled
def test_amplification_hits_the_memory_limit():
    """Two bytes each store another stack: rejected long before memory runs out."""
    what, offset = outcome(hand(HUGE["single appends to a stack"]))
    assert what == "needs more memory than a snapshot of this size"
    assert offset < 12_000


#: What takes the most memory for its bytes, over and over; the number makes each distinct.
DENSE = {
    "lists of nothing": lambda _: b"]",
    "lists": lambda _: b"](K\x01K\x01K\x01K\x01K\x01e",
    "long lists": lambda _: b"](" + b"J\x01\x02\x03\x04" * 100 + b"e",
    "dicts": lambda _: b"}(" + b"".join(b"K%cN" % key for key in range(6)) + b"u",
    "rows": lambda _: b"}(" + text("action") + b"Nu",
    "frames": lambda i: b"}(" + text("filename") + b"J" + struct.pack("<i", i) + b"u",
    "stacks": lambda i: FRAME + b"r" + struct.pack("<i", i) + b"]j" + struct.pack("<i", i) + b"a",
    "numbers": lambda i: b"M" + struct.pack("<H", 300 + i % 60_000),
    "large numbers": lambda i: b"\x8a\x09" + struct.pack("<q", i) + b"\x05",
    "fractions": lambda i: b"G" + struct.pack(">d", i),
    "texts": lambda i: b"\x8c\x04" + struct.pack("<i", i),
    "tuples": lambda i: b"J" + struct.pack("<i", i) + b"\x85",
}


@pytest.mark.matrix
@pytest.mark.sample(6)
@pytest.mark.parametrize("name", DENSE)
def test_objects_stay_within_the_limit(name, monkeypatch):
    monkeypatch.setattr(unpickler, "ALLOWANCE", 1 << 20)
    parts, size = [], 0
    while size < 200_000:
        parts.append(DENSE[name](len(parts)))
        size += len(parts[-1])
    data = hand(b"](", *parts, b"e")
    tracemalloc.start()
    try:
        with suppress(Refused):
            read(data, 1 << 12, slow=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < unpickler.OBJECTS * len(data) + unpickler.ALLOWANCE + (1 << 17)


@pytest.mark.parametrize(
    "key",
    [
        *(b"]", b"}", b")", b"K\x01\x85", FRAME, b"G" + bytes(8), b"\x8a\x05\0\0\0\0\1"),
        b"N" + b"\x85" * 5_000,  # its hash would recurse
    ],
    ids=range(8),
)
def test_unhashable_or_colliding_keys_are_rejected(key):
    message = "a key that is neither text nor a small number"
    for data in (hand(b"}", key, b"Ns"), hand(b"}(NN", key, b"Nu")):
        assert outcome(data, slow=True)[0] == message


def test_problems_have_the_numbers_of_the_compiled_machine():
    header = (Path(machine.__file__).parent / "_machine_store.h").read_text()
    names = re.search(r"FINE, ([A-Z_,\s]+), NO_MEMORY", header)
    assert names
    problems = [problem.name for problem in Problem]
    assert re.split(r",\s+", names[1]) == problems[: problems.index("KEY")]


@compiled
def test_work_is_limited():
    """Nothing new is stored, but each two bytes make it look at a thousand frames again."""
    same = b"](" + b"h\x00" * 1000 + b"e" + b"h\x00a" * 1000
    assert refusal(hand(FRAME, b"\x94", same * 30))[0] == "a stack is refilled too often"


@compiled
def test_sharing_does_not_multiply():
    """A billion laughs: each list holds the one before it ten times."""
    laughs = b"](Ne\x94" + b"".join(b"](" + bytes((0x68, i)) * 10 + b"e\x94" for i in range(9))
    assert refusal(hand(laughs))[0] == "a list or row is used twice"
    dicts = b"}NNs\x94" + b"".join(b"}(Nh%cK\0h%cu\x94" % (i, i) for i in range(9))
    assert refusal(hand(dicts))[0] == "a list or row is used twice"


def test_claimed_length_does_not_allocate_memory():
    data = b"\x80\x04X" + struct.pack("<I", 16 << 20) + b"x" * 100
    tracemalloc.start()
    try:
        assert not read(data).complete
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        assert not read(data, slow=True).complete
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


@compiled
def test_dense_torch_file_fits_the_limit():
    """The C++ pickler leaves all events on the stack until the list ends: 30 bytes each."""
    names = [text(key) + b"q" + bytes([at]) for at, key in enumerate(("action", "addr", "alloc"))]
    head = b"](" + b"".join(names) + text("size") + b"q\x03" + text("stream") + b"q\x04"
    events = 300_000
    event = b"}(h\x00h\x02h\x01\x8a\x08%sh\x03J\x07\0\0\0h\x04K\0u"
    body = b"".join(event % struct.pack("<q", at << 9 | 0x7F << 40) for at in range(events))
    assert len(body) == 30 * events
    reader = new()
    reader.feed(b"\x80\x02" + head + body + b"e.")
    assert reader.allocated_bytes < 2 * len(body)
    result = reader.close()
    assert result.tables[1][0] == events
    addresses = memoryview(result.tables[1][1]["addr"]).cast("Q")
    assert addresses[events - 1] >> 4 == (events - 1) << 9 | 0x7F << 40


# --- damage ----------------------------------------------------------------------------------

SEEDS = [pickle.dumps(snapshot(6, 4), protocol) for protocol in (2, 4)] + [
    like_torch(snapshot(6, 4))
]
OPCODES = b"().GJKMNX]aehjqrstu}\x80\x85\x86\x87\x88\x89\x8a\x8c\x94\x95"


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Bytes changed, removed, doubled, and opcodes put in."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 12))):
        at = chance.randrange(2, len(out))
        kind = chance.randrange(5)
        if kind == 0:
            out[at] = chance.randrange(256)
        elif kind == 1:
            out[at] = chance.choice(OPCODES)
        elif kind == 2:
            del out[at : at + chance.randrange(1, 9)]
        elif kind == 3:
            out[at:at] = bytes(chance.choices(OPCODES, k=chance.randrange(1, 6)))
        else:
            other = chance.randrange(2, len(out))
            out[at:at] = out[other : other + chance.randrange(1, 60)]
    return bytes(out)


@compiled
@pytest.mark.parametrize("part", range(4))
def test_damage_is_handled_alike(part, thorough):
    chance = random.Random(part)  # noqa: S311 - damage, not secrets
    outcomes: dict[str, int] = {}
    count = 400 if thorough else 100
    for _ in range(count):
        data = damaged(chance.choice(SEEDS), chance)
        result = outcome(data, chance.choice((1, 13, 1 << 20)))
        slow = outcome(data, slow=True)
        assert agree(result, slow), data
        kind = "refused" if isinstance(result, tuple) else str(result.complete)
        outcomes[kind] = outcomes.get(kind, 0) + 1
    assert outcomes["refused"] > count / 4
    assert outcomes["True"] + outcomes.get("False", 0) > count / 20


@given(st.lists(st.sampled_from([bytes([op]) for op in OPCODES]) | st.binary(max_size=4)))
@settings(max_examples=100)
def test_any_opcodes(parts):
    data = hand(*parts)
    assert agree(outcome(data, 3), outcome(data, slow=True))
