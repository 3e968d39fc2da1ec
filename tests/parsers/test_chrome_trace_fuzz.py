"""Damaged traces: any damaged file is read or rejected in one line."""

from __future__ import annotations

import gzip
import random
import time
from pathlib import Path

import pytest
from damage import SHARE

from traceanalyzer import InputError, read, schema

FIXTURES = Path(__file__).parents[2] / "fixtures"
CASES, BLOCKS = 500, 5
#: Seconds one damaged file of a few KB may take; generous for busy machines.
PATIENCE = 10.0

TOKENS = (
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\0", b"\xff", b"\xef\xbb\xbf"),
    *(
        b"null",
        b"true",
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"-1",
        b"9" * 40,
        b"0.0000001",
        b"[[[[[[[[",
    ),
    *(b'"X"', b'"B"', b'"E"', b'"ts":', b'"dur":"1a"', b'"args":{', b'{"ph":"X"', rb'"\ud800"'),
    *(b'"pid":"Spans"', b'"id":18446744073709551616', b'"traceEvents":[', b"]}", b"{}", rb"\u0000"),
)


def _seeds() -> list[bytes]:
    """Short traces of every layout: our fixtures, their first and last events."""
    texts = []
    for path in sorted(FIXTURES.rglob("*.json*")):
        data = path.read_bytes()
        if path.suffix == ".gz" and "malformed" not in path.parts:
            data = gzip.decompress(data)
        texts.append(data if len(data) < 6_000 else data[:3_000] + data[-2_000:])
    return texts


SEEDS = _seeds()


def damaged(chance: random.Random) -> bytes:
    """One mutated trace: cut, spliced, bytes flipped, tokens put in, spans doubled."""
    text = bytearray(chance.choice(SEEDS))
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(text) + 1)
        length = chance.choice((1, 2, 8, 40, 300))
        match chance.randrange(7):
            case 0:
                text[at:at] = chance.choice(TOKENS)
            case 1:
                del text[at : at + length]
            case 2:
                text[at : at + 1] = bytes((chance.randrange(256),))
            case 3:
                del text[at:]
            case 4:
                text[at:at] = text[at : at + length]
            case 5:
                other = chance.choice(SEEDS)
                start = chance.randrange(len(other) + 1)
                text[at:at] = other[start : start + length]
            case _:
                number = chance.choice(TOKENS)
                colon = text.find(b":", at)
                if colon >= 0:
                    text[colon + 1 : colon + 1 + chance.randrange(8)] = number
    data = bytes(text)
    if chance.random() < 0.1:
        packed = bytearray(gzip.compress(data, 1))
        packed[chance.randrange(len(packed))] ^= chance.randrange(256)
        data = bytes(packed[: chance.randrange(1, len(packed) + 1)])
    return data


def survives(path: Path, data: bytes) -> None:
    """Reads a damaged file: a trace that holds the schema, or an error of one line."""
    path.write_bytes(data)
    started = time.process_time()
    try:
        trace = read(path)
    except InputError as error:
        message = str(error)
    else:
        message = "; ".join(schema.check(trace.tables))
        assert message == ""
    assert "\n" not in message
    assert time.process_time() - started < PATIENCE


@pytest.mark.sample(4)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_damaged_traces_are_read_or_rejected(tmp_path, block):
    for seed in range(block * CASES // BLOCKS, (block + 1) * CASES // BLOCKS):
        data = damaged(random.Random(seed))  # noqa: S311
        try:
            survives(tmp_path / "damaged", data)
        except Exception:  # noqa: BLE001 - whatever it is, its input is kept
            keep = Path(tmp_path / f"crash_{seed}.json")
            keep.write_bytes(data)
            pytest.fail(f"seed {seed}, kept as {keep}", pytrace=True)


@pytest.mark.fuzz
def test_many_more(tmp_path):
    """``make fuzz``: fresh seeds as long as there is time."""
    end = time.monotonic() + SHARE
    first = random.SystemRandom().randrange(1 << 40)
    seed = first
    while time.monotonic() < end:
        data = damaged(random.Random(seed))  # noqa: S311
        try:
            survives(tmp_path / "damaged", data)
        except Exception:  # noqa: BLE001 - whatever it is, its input is kept
            (tmp_path / f"crash_{seed}.json").write_bytes(data)
            pytest.fail(f"seed {seed}, kept in {tmp_path}", pytrace=True)
        seed += 1
    print(f"{seed - first} damaged traces from seed {first}")  # noqa: T201
