"""Files of every format with damaged values, rows, opcodes, lines or bytes."""

from __future__ import annotations

import copy
import gzip
import io
import json
import os
import pickletools
import sqlite3
import zlib
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

from any_trace import any_trace
from mutation import mutated as mutated_text

from traceanalyzer.exporters.parquet import write_parquet
from traceanalyzer.exporters.perfetto.wire import delimited
from traceanalyzer.parsers.perfetto.wire import DELIMITED, whole_fields

#: Seconds of each loop of ``make fuzz``; a fifth of FUZZ_SECONDS is for the byte fuzzer.
SHARE = float(os.environ.get("FUZZ_SECONDS", "60")) / 10

FIXTURES = Path(__file__).parents[1] / "fixtures"
_ODD: tuple[Any, ...] = (
    *(None, True, "", "X", "B", "1", "stream 7", "\ud800".encode("utf-8", "replace").decode()),
    *(0, -1, 1 << 31, 1 << 44, 1 << 57, (1 << 63) - 1, -(1 << 63), 1 << 64, 10**40),
    *(0.5, -1e300, 1e-300, 1e18, float("nan"), float("inf")),
    *([], {}, [[1, 2]], {"a": [1]}),
)
_CELLS = (None, "", "X", b"\xff\0", 0, -1, 1 << 31, 1 << 44, (1 << 63) - 1, -(1 << 63), 0.5, 1e300)
_OPCODES = [code.code.encode("latin1") for code in pickletools.opcodes]


def _files(pattern: str, most: int = 200_000) -> list[bytes]:
    files = []
    for path in sorted(FIXTURES.glob(pattern)):
        data = path.read_bytes()
        whole = path.name.endswith(".gz") and "malformed" not in path.parts
        data = gzip.decompress(data) if whole else data
        if 0 < len(data) < most:
            files.append(data)
    return files


CHROME = _files("py_spy/*.chrometrace.json") + _files("malformed/*.json", 20_000)
CHROME += [data[:6000].rpartition(b"},")[0] + b"}]}" for data in _files("*/*.json.gz", 1 << 30)]
COLLAPSED = _files("py_spy/*.raw.txt") + _files("malformed_stacks/*.txt")
SPEEDSCOPE = _files("py_spy/*.speedscope.json") + _files("malformed_stacks/*.json")
SNAPSHOTS = _files("memory/*.pickle")
NSYS = _files("nsys/*.sqlite", 1 << 30)
PRINTED = _files("printed_text/*") + _files("malformed_text/*", 20_000)
INSPECTOR = _files("nccl_inspector/*/*")
REQUEST_LOGS = _files("requests/*.json*")
PERFETTO = _files("malformed_perfetto/*")
ROCPD = _files("rocpd/[!t]*") + _files("rocpd/training.*")


def changed_json(chance: Random, data: bytes) -> bytes:
    """Replace, remove, duplicate, nest and swap JSON values; mutate text that is not JSON."""
    try:
        whole = json.loads(data)
    except ValueError:
        return mutated_text(chance, data)
    for _ in range(chance.choice((1, 1, 2, 4, 9))):
        places = list(_places(whole))[:4000]
        if not places:
            break
        holder, key = chance.choice(places)
        other, place = chance.choice(places)
        match chance.randrange(6):
            case 0 | 1:
                holder[key] = copy.deepcopy(chance.choice(_ODD))
            case 2:
                del holder[key]
            case 3 if isinstance(holder, list):
                more = holder[key : key + 1] * chance.choice((1, 2, 50))
                holder[key:key] = json.loads(json.dumps(more))
            case 4:
                holder[key] = [holder[key]]
            case _:
                holder[key] = json.loads(json.dumps(other[place]))
    return json.dumps(whole).encode(errors="surrogatepass")


def _places(value: Any) -> Any:
    """Yield every (container, key)."""
    keys = value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    for key in keys:
        yield value, key
        yield from _places(value[key])


def changed_lines(chance: Random, data: bytes) -> bytes:
    """Cut, join and duplicate lines, and replace counts and frames."""
    lines = data.split(b"\n")[: chance.choice((3, 30, 300))]
    odd = (
        b"0",
        b"-1",
        b"nan",
        b"1e9",
        b"9" * 30,
        b"",
        b"\xff",
        b"(",
        b'thread (0x1): "a;b"',
        b"a:1",
    )
    for _ in range(chance.choice((1, 2, 5))):
        at = chance.randrange(len(lines))
        parts = lines[at].split(b";" if chance.random() < 0.5 else b" ")
        parts[chance.randrange(len(parts))] = chance.choice(odd)
        match chance.randrange(4):
            case 0:
                lines[at] = b";".join(parts)
            case 1:
                lines[at] = b" ".join(parts)
            case 2:
                lines[at:at] = lines[at : at + 1] * 2
            case _:
                lines[at] = lines[at][: chance.randrange(len(lines[at]) + 1)]
    return b"\n".join(lines)


def changed_json_lines(chance: Random, data: bytes) -> bytes:
    """Change the values of some lines of JSON, and remove and duplicate lines."""
    lines = data.splitlines()[: chance.choice((1, 3, 30))]
    for _ in range(chance.choice((1, 2, 5))):
        at = chance.randrange(len(lines))
        lines[at] = changed_json(chance, lines[at])
        if chance.random() < 0.3:
            lines[at:at] = lines[at : at + 1] * chance.choice((1, 2))
    return b"\n".join(lines)


def changed_packets(chance: Random, data: bytes) -> bytes:
    """Remove, duplicate, swap, nest and compress packets, and change lengths and numbers."""
    view, begin = memoryview(data), 0
    packets = []
    for field in whole_fields(view, 0, len(data)):
        end = field.at + (field.value if field.type == DELIMITED else 0)
        packets.append(data[begin:end])
        begin = end
    for _ in range(chance.choice((1, 2, 5))):
        if not packets:
            break
        at = chance.randrange(len(packets))
        match chance.randrange(5):
            case 0:
                packets[at] = changed_bytes(chance, packets[at])
            case 1:
                packets[at:at] = packets[at : at + 1] * chance.choice((1, 2, 100))
            case 2:
                packets[at] = chance.choice(packets)
            case 3:
                packets[at] = delimited(1, delimited(50, zlib.compress(packets[at])))
            case _:
                packets[at] = delimited(chance.choice((1, 11, 12, 50, 60)), packets[at])
    return b"".join(packets)


def changed_opcodes(chance: Random, data: bytes) -> bytes:
    """Remove, duplicate, replace and insert opcodes of a pickle."""
    try:
        starts = [at for _, _, at in pickletools.genops(data) if at is not None]
    except Exception:  # noqa: BLE001 - the input is damaged
        return changed_bytes(chance, data)
    parts = [data[a:b] for a, b in zip(starts, [*starts[1:], len(data)], strict=True)]
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(1, len(parts))
        match chance.randrange(4):
            case 0:
                del parts[at]
            case 1:
                parts[at:at] = [chance.choice(parts)] * chance.choice((1, 1, 100))
            case 2:
                parts[at] = chance.choice(parts)
            case _:
                parts[at:at] = [chance.choice(_OPCODES)]
    return b"".join(parts)


def changed_rows(chance: Random, data: bytes) -> bytes:
    """Replace cells of a database, delete rows, rename and drop columns."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(data)
        database.execute("PRAGMA journal_mode = MEMORY")
        tables = [
            row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        for _ in range(chance.choice((1, 2, 5))):
            name = chance.choice(tables)
            columns = [row[1] for row in database.execute(f'PRAGMA table_info("{name}")')]
            column = chance.choice(columns)
            some = f"WHERE rowid % {chance.choice((1, 2, 7))} = 0"
            statement = chance.choice(
                (
                    *(f'UPDATE OR IGNORE "{name}" SET "{column}" = ? {some}',) * 3,
                    f'DELETE FROM "{name}" {some}',
                    f'ALTER TABLE "{name}" RENAME COLUMN "{column}" TO "c{chance.random()}"',
                    f'ALTER TABLE "{name}" DROP COLUMN "{column}"',
                )
            )
            with suppress(sqlite3.Error):
                database.execute(statement, (chance.choice(_CELLS),) if "?" in statement else ())
        database.commit()
        return database.serialize()


def changed_bytes(chance: Random, data: bytes) -> bytes:
    """Change, remove and insert bytes, and truncate the end."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 2, 8))):
        at = chance.randrange(len(changed) or 1)
        match chance.randrange(4):
            case 0 | 1:
                changed[at : at + 1] = bytes((chance.randrange(256),))
            case 2:
                del changed[at : at + chance.choice((1, 4, 200))]
            case _:
                changed[at:at] = changed[at : at + chance.choice((1, 4, 200))]
    end = chance.randrange(len(changed) + 1) if chance.random() < 0.1 else len(changed)
    return bytes(changed[:end])


def _parquet(chance: Random) -> bytes:
    file = io.BytesIO()
    write_parquet(any_trace(chance, 20), file)
    return file.getvalue()


def damaged(name: str, chance: Random) -> bytes:
    """Return a damaged file of a format."""
    if name == "parquet":
        return changed_bytes(chance, _parquet(chance))
    corpus, structural = _STRUCTURE[name]
    change = structural if chance.random() < 0.7 else changed_bytes
    return change(chance, chance.choice(corpus))


_STRUCTURE = {
    "chrome-trace": (CHROME, changed_json),
    "collapsed": (COLLAPSED, changed_lines),
    "speedscope": (SPEEDSCOPE, changed_json),
    "nccl-inspector": (INSPECTOR, changed_json_lines),
    "request-log": (REQUEST_LOGS, changed_json_lines),
    "printed-text": (PRINTED, changed_lines),
    "memory-snapshot": (SNAPSHOTS, changed_opcodes),
    "perfetto": (PERFETTO, changed_packets),
    "nsys-sqlite": (NSYS, changed_rows),
    "rocpd": (ROCPD, changed_rows),
}
FORMATS = (*_STRUCTURE, "parquet")
