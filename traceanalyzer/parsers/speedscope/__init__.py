"""speedscope JSON: sampled and evented profiles, written by py-spy and many other tools.

Input: JSON text. Output: ``sample`` events and the prefix tree of their frames, one lane per
profile.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import numpy as np
import polars as pl

from traceanalyzer import schema
from traceanalyzer.errors import MalformedInput
from traceanalyzer.frames.stacks import Interner
from traceanalyzer.parsers import tables
from traceanalyzer.parsers.collapsed.text import LABELLED, named
from traceanalyzer.parsers.contract import Format, Progress, Selection
from traceanalyzer.parsers.source import Source, rank_or_node_from_name
from traceanalyzer.parsers.speedscope import profiles
from traceanalyzer.parsers.tables import Frame, Lanes
from traceanalyzer.trace import Meta, Trace, issue_rows, sort_events

#: What only speedscope writes, by a key in it: most files are refused by looking for the keys.
_SIGNS = {
    b'"$schema"': re.compile(rb'"\$schema"\s*:\s*"https?://www\.speedscope\.app/'),
    b'"shared"': re.compile(rb'"shared"\s*:\s*\{\s*"frames"\s*:\s*\['),
    b'"profiles"': re.compile(rb'"type"\s*:\s*"(?:sampled|evented)"'),
}
_MAX_LINE = (1 << 31) - 1
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
#: Issues without data loss; all others are losses.
_NOTICES = frozenset(("unclosed-frame", "mismatched-close", "mixed-units"))


def sniff(head: bytes, path: str) -> bool:  # noqa: ARG001 - a parser's signature
    """Whether the first bytes look like speedscope JSON; the file name does not matter."""
    if not head.lstrip().startswith(b"{"):
        return False
    return any(key in head and pattern.search(head) for key, pattern in _SIGNS.items())


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:
    """Read one speedscope file.

    Weights are in ns, and samples have a start, if the profile's unit is a time; else weights are
    in bytes or samples. Process and thread come from profile names in py-spy's style; if there are
    several other profiles, each one is a thread with a synthetic id.

    Raises:
        MalformedInput: the file is not JSON, or none of its profiles can be read.
        UnreadableFile: the file cannot be read.
    """
    rank = rank_or_node_from_name(source.path)
    kinds = selection.kinds
    if kinds is not None and not kinds & {"sample", "lane"}:
        return Trace(sources=(Meta(path=source.path, format=FORMAT.name, rank=rank),))
    file = _decoded(source, b"".join(source.blocks(progress=progress)))
    read = _Read()
    entries = file.shared.frames
    if (file.exporter or "").startswith(_OF_DEFINITIONS):
        entries = [profiles.FrameEntry(entry.name, entry.file) for entry in entries]
    frames, numbered = _distinct(entries)
    for index, raw in enumerate(file.profiles):
        try:
            profile = msgspec.json.decode(raw, type=profiles.Profile, strict=False)
        except _UNDECODABLE:
            read.issues["bad-profile"] = read.issues.get("bad-profile", 0) + 1
            continue
        owner = profiles.owner_of(profile.name)
        lane = _lane(profile.name, owner, index, len(file.profiles) > 1, read.lanes)
        owner = owner or profiles.NOBODY
        lane_of = partial(named, lanes=read.lanes, pid=owner.pid, tid=owner.tid)
        samples = profiles.samples_of(profile, numbered, lane_of, read.tree, read.issues)
        read.add(profile, samples, lane, owner.category)
    if file.profiles and not read.units:
        raise MalformedInput(source.path, "none of its profiles can be read")
    if source.damage:
        read.issues[f"damaged-file: {source.damage}"] = 1
    return _trace(source, read, frames, rank, events=kinds is None or "sample" in kinds)


#: Its lines are those of definitions, not of the code that ran.
_OF_DEFINITIONS = "pyinstrument"


@dataclass
class _Read:
    """The samples of all profiles so far, one list per column."""

    tree: Interner = field(default_factory=Interner)
    lanes: Lanes = field(default_factory=Lanes)
    issues: dict[str, int] = field(default_factory=dict)
    units: set[str | None] = field(default_factory=set)
    samples: list[profiles.Sample] = field(default_factory=list)
    lane_of: list[int] = field(default_factory=list)
    category: list[str | None] = field(default_factory=list)

    def add(
        self,
        profile: profiles.Profile,
        samples: Iterable[profiles.Sample],
        lane: int,
        category: str | None,
    ) -> None:
        more = list(samples)
        self.samples += more
        self.lane_of += [lane if sample.lane is None else sample.lane for sample in more]
        self.category += [category] * len(more)
        self.units.add(profiles.unit_of(profile))


def _decoded(source: Source, text: bytes) -> profiles.File:
    try:
        return msgspec.json.decode(text, type=profiles.File)
    except _UNDECODABLE as error:
        what = str(error).splitlines()[0]
        raise MalformedInput(
            source.path, f"invalid speedscope JSON: {what}", hint="the file may be truncated"
        ) from None


def _distinct(entries: list[profiles.FrameEntry]) -> tuple[list[Frame], profiles.Frames]:
    """Return the distinct frames, and each entry's number among them, ignoring column numbers."""
    numbers: dict[Frame, int] = {}
    of_entry = [
        numbers.setdefault(Frame(entry.name, entry.file or None, _line(entry.line)), len(numbers))
        for entry in entries
    ]
    texts = {
        number: frame.name.encode(errors="replace")
        for frame, number in numbers.items()
        if frame.file is None and frame.line is None
    }
    label = {number: text for number, text in texts.items() if text.startswith(LABELLED)}
    return list(numbers), profiles.Frames(of_entry, label)


def _line(line: float | None) -> int | None:
    if line is None or not 0 < line <= _MAX_LINE:
        return None
    return int(line)


def _lane(name: str, owner: profiles.Owner | None, index: int, several: bool, lanes: Lanes) -> int:
    """Return the lane of a profile."""
    if owner is None:
        if not several:
            return 0
        tid = -1 - index  # negative: never a real thread id
        lanes.add_thread(None, tid, name)
        lanes.textual.add((None, tid))
        return lanes.of(None, tid)
    if owner.pid is not None:
        lanes.add_process(owner.pid, None, None)
    if owner.tid is not None:
        # py-spy writes "" if the thread had no name at its first sample
        lanes.add_thread(owner.pid, owner.tid, owner.thread or None)
    return lanes.of(owner.pid, owner.tid)


def _trace(
    source: Source, read: _Read, frames: list[Frame], rank: int | None, *, events: bool
) -> Trace:
    unit = next(iter(read.units)) if len(read.units) == 1 else None
    if len(read.units) > 1:
        read.issues["mixed-units"] = 1
    trace = Trace(
        sources=(Meta(path=source.path, format=FORMAT.name, rank=rank, weight_unit=unit),),
        lanes=tables.lanes_table(read.lanes, rank),
        issues=issue_rows(map(_issue, read.issues.items()), rank),
    )
    if not events:
        return trace
    samples = read.samples
    tree = read.tree.tree(np.array([sample.leaf for sample in samples], np.uint32))
    table = tables.sample_events(
        read.lanes,
        np.array(read.lane_of, np.uint32),
        np.array([sample.weight for sample in samples], np.float64),
        tree.leaf,
        rank,
        ts=pl.Series([sample.ts for sample in samples], dtype=pl.Int64),
        category=pl.Series(read.category, dtype=schema.NAME),
    )
    return sort_events(replace(trace, events=table, stacks=tables.stacks_table(tree, frames)))


def _issue(counted: tuple[str, int]) -> tuple[str, str, int, str | None]:
    code, _, place = counted[0].partition(": ")
    severity = "notice" if code in _NOTICES else "data_loss"
    return severity, code, counted[1], place or None


FORMAT: Format = Format(
    name="speedscope",
    suffixes=(".speedscope.json", ".json"),
    description="speedscope JSON, sampled and evented",
    spec_url="https://www.speedscope.app/file-format-schema.json",
    sniff=sniff,
    parse=parse,
    priority=50,
)
