"""What the log of a job says of failures, its end, NCCL's network, and engines that serve models.

``ProcessGroupNCCL`` prints a line for each collective that timed out: the rank in square brackets
is that within the group, the one before it, which newer versions print, is that of the job. With
TORCH_DISTRIBUTED_DEBUG=DETAIL, ranks compare what they call, and print where they differ.
Lines that are alike are one row, with the first of them; each line of an engine is one. Guards and
reasons of torch.compile belong to the function in the line before, and are alike if numbers differ.
"""

import re
from functools import cache

from traceanalyzer.files import packaged
from traceanalyzer.parsers.printed_text.lines import Line, Rows, number

FORM, ENGINE, CONTEXT = "job_events", "engine", "job_context"
_STEP, _ERROR = "step", "error"  # steps are in most lines of some logs
_ENGINES = ("vLLM", "SGLang")

_RANK = (
    r"(?:\[rank(?P<rank>\d{1,7})\]:.{0,200}?)?"
    r"\[(?:PG (?:ID \d{1,9} PG GUID )?(?P<group>[^\]]{1,200}?) )?"
    r"[Rr]ank ?(?P<of_group>\d{1,7})\] {1,3}"
)
_TEXTS = (
    "group", "of_group", "op", "ranks", "shape", "what", "gpu", "rank", "engine", "message",
    "function", "host",
)  # fmt: skip
_OF_FUNCTION = {"guard": "recompilation", "graph break reason": "graph break"}
_LONGEST, _MOST = 200, 1 << 16
#: Lines of a traceback besides its last one; those that say that the next one continues it.
_CHAIN = re.compile(r"(?:During handling of|The above exception was)\b")
_TRACEBACK = re.compile(r"\s|$|Traceback \(most recent")
#: Most lines of a message after its first one.
_MESSAGE = 8
#: Most series of steps of a process.
_SERIES = 1 << 10
#: What differs between lines of one series of steps.
_LETTERS, _NUMBER = re.compile(r"[^A-Za-z]+"), re.compile(r"\d")


@cache
def _kinds() -> dict[str, tuple[tuple[str, ...], re.Pattern[str]]]:
    """Return marks and a pattern by the kind of an event."""
    kinds = packaged("parsers/job_events.toml").items()
    return {
        kind: (tuple(one["marks"]), re.compile(one["line"].replace("RANK", _RANK), re.ASCII))
        for kind, one in kinds
    }


@cache
def _context() -> frozenset[str]:
    """Return the kinds that only explain others."""
    kinds = packaged("parsers/job_events.toml").items()
    return frozenset(kind for kind, one in kinds if one.get("context"))


@cache
def _every() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return the kinds and their patterns, in their order."""
    return tuple((kind, pattern) for kind, (_, pattern) in _kinds().items())


@cache
def _places() -> dict[str, list[int]]:
    """Return the places of the kinds that have a mark."""
    places = dict[str, list[int]]()
    for place, (of_kind, _) in enumerate(_kinds().values()):
        for mark in of_kind:
            places.setdefault(mark, []).append(place)
    return places


@cache
def all_marks() -> tuple[str, ...]:
    """Return the texts of which a line of any kind has one."""
    return tuple(_places())


@cache
def marks() -> tuple[str, ...]:
    """Return the texts of which a line with an event has one."""
    kinds = (marks for kind, (marks, _) in _kinds().items() if kind not in _context())
    return tuple(dict.fromkeys(mark for of_kind in kinds for mark in of_kind))


def has_event(text: str) -> bool:
    """Return whether a line has an event that is more than context."""
    return any(kind not in _context() for kind, _ in _events(text, marks()))


def _events(text: str, among: tuple[str, ...]) -> list[tuple[str, re.Match[str]]]:
    """Return the events in a line, all of one kind, whose marks are among these."""
    places = {place for mark in among if mark in text for place in _places()[mark]}
    for place in sorted(places):
        kind, pattern = _every()[place]
        if matches := list(pattern.finditer(text)):
            return [(kind, one) for one in matches]
    return []


class Reader:
    """Reads the events of one process."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._others = 0  # lines of engines leave room for a failure after them
        self._last = dict[tuple[object, ...], int]()
        self._events = dict[tuple[object, ...], tuple[Line, dict[str, str], int]]()
        self._functions = dict[str, str]()  # the last one of a kind
        self._seconds = dict[tuple[object, ...], float]()
        self._steps = dict[tuple[object, ...], tuple[int, str, int]]()
        self._groups = dict[tuple[object, ...], int]()
        self._errors = self._others_since = 0  # times that the process went on after errors, lines

    def feed(self, line: Line) -> None:
        """Read a line."""
        events = _events(line.text, line.marks)
        if events or self._errors:
            self._follow(line.text, {kind for kind, _ in events})
        for kind, match in events:
            texts = {name: text for name, text in match.groupdict().items() if text is not None}
            seconds = float(number(texts.pop("seconds", "")) or 0)
            if kind in _OF_FUNCTION:
                texts["function"] = self._functions.get(_OF_FUNCTION[kind], "")
            self._functions[kind] = texts.get("function", "")
            message = line.text[match.start() :][:_LONGEST].strip()
            same = texts.items() if texts else [("message", re.sub(r"\d+", "#", message))]
            if "function" in texts:
                what = texts.get("what", "")
                what = re.sub(r"\d+", "#", what) if kind in _OF_FUNCTION else what
                same = [("function", texts["function"]), ("what", what)]
            key = kind, line.rank, *same, line.number if kind in _ENGINES else self._errors
            if kind == _STEP:
                key = self._step(line, line.text[: match.start()][-_LONGEST:])
            elif kind not in (*_ENGINES, _ERROR):
                key = key[:-1]
            first, known, n = self._events.get(key, (line, {**texts, "message": message}, 0))
            if n or kind in _ENGINES or self._others < _MOST:
                self._others += kind not in _ENGINES and not n
                self._last[key], self._groups[key] = line.number, self._errors
                self._events[key] = first, known, n + 1
                self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    def _follow(self, text: str, kinds: set[str]) -> None:
        """Count how often the process went on after errors in Python: other lines follow one."""
        if _ERROR in kinds:
            self._errors += self._others_since > 0 or not self._errors
            self._others_since = 0
        elif _CHAIN.match(text):
            self._others_since = 0
        elif kinds <= {_STEP} and not _TRACEBACK.match(text):
            self._others_since += 1

    def _step(self, line: Line, before: str) -> tuple[object, ...]:
        """Return the series of a step, and keep the line of the step before its last one.

        Ranks print lines of one step that begin alike, and may differ in the loss only.
        """
        key = _STEP, line.rank, _LETTERS.sub(" ", before)
        key = key if key in self._steps or len(self._steps) < _SERIES else (_STEP, None, "")
        last, begin, previous = self._steps.get(key, (0, "", 0))
        is_same = before == begin and _NUMBER.search(before)
        self._steps[key] = line.number, before, previous if is_same else last
        return key

    def close(self) -> None:
        """End the text: write the events."""
        errors = self._errors + (self._others_since > _MESSAGE)
        block = self.rows.block() if self._events else 0
        for row, (key, (first, texts, n)) in enumerate(self._events.items()):
            kind = key[0]
            values: dict[str, float | str | None] = {
                name: text if name in _TEXTS else number(text) for name, text in texts.items()
            }
            rank = texts.get("rank") or first.launched
            rank = texts.get("of_group") if rank is None else rank
            values["n"] = float(n)
            if self._seconds[key]:
                values["total_ns"] = 1e9 * self._seconds[key]
            if kind == _ERROR:
                values["number"] = float(errors - self._groups[key])
            if kind == _STEP:
                values["number"] = float(self._steps[key][2])
            if n > 1:
                values["last"] = float(self._last[key])
            form = ENGINE if kind in _ENGINES else CONTEXT if kind in _context() else FORM
            of = None if rank is None else int(rank)
            self.rows.add(form, (block, row), first, values, name=str(kind), rank=of)
