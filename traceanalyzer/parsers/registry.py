"""Which parser reads a file: decided by its first bytes, never by its name alone."""

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from traceanalyzer.errors import OptionError, UnknownFormat
from traceanalyzer.parsers import collapsed, foreign, memory_snapshot, parquet, speedscope
from traceanalyzer.parsers.chrome_trace import parser as chrome_trace
from traceanalyzer.parsers.contract import Format
from traceanalyzer.parsers.nsys_sqlite import parser as nsys_sqlite
from traceanalyzer.parsers.source import Source

#: Packages elsewhere add a Format under this entry-point group.
ENTRY_POINTS = "traceanalyzer.parsers"

_BUILT_IN = (
    chrome_trace.FORMAT,
    parquet.FORMAT,
    nsys_sqlite.FORMAT,
    memory_snapshot.FORMAT,
    speedscope.FORMAT,
    collapsed.FORMAT,
    nsys_sqlite.REPORT,
)


@cache
def formats() -> tuple[Format, ...]:
    """All known formats, the first asked first; of two with one name ours, then the first found."""
    found = {f.name: f for f in _BUILT_IN}
    for extra in _loaded()[0]:
        found.setdefault(extra.name, extra)
    return tuple(sorted(found.values(), key=lambda f: (-f.priority, f.name)))


def unusable() -> tuple[str, ...]:
    """What other packages announce as a format and cannot be loaded, each with the reason."""
    return _loaded()[1]


@cache
def _loaded() -> tuple[tuple[Format, ...], tuple[str, ...]]:
    """The formats of other packages; one that is broken must not keep us from reading the rest."""
    good: list[Format] = []
    broken: list[str] = []
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda e: (e.name, e.value)):
        loaded = _load(entry)
        if isinstance(loaded, Format):
            good.append(loaded)
        else:
            broken.append(f"{entry.name} ({loaded})")
    return tuple(good), tuple(broken)


def _load(entry: EntryPoint) -> Format | str:
    """An entry point's Format, or why there is none."""
    try:
        found = entry.load()
    except Exception as error:  # noqa: BLE001 - somebody else's module may raise anything
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return found if isinstance(found, Format) else f"{entry.value} is no Format"


def by_name(name: str) -> Format:
    """The format of this name.

    Raises:
        OptionError: there is none; the message lists them.
    """
    for candidate in formats():
        if candidate.name == name:
            return candidate
    known = ", ".join(f.name for f in formats())
    raise OptionError(f"no format is called {name!r}; known are {known}{_told_unusable()}")


def detect(source: Source) -> Format | None:
    """The format whose parser recognises the content, or None.

    Raises:
        InputError: the file cannot be read or decompressed.
    """
    head = source.head()
    # of ours first those that cannot be mistaken: to look through all that is installed takes time
    sure = sorted((f for f in _BUILT_IN if f.priority > 0), key=lambda f: -f.priority)
    found = next((f for f in sure if _recognises(f, head, source.path)), None)
    return found or next((f for f in formats() if _recognises(f, head, source.path)), None)


def require(source: Source) -> Format:
    """The format of a file.

    Raises:
        InputError: the file cannot be read or decompressed.
        UnknownFormat: no parser recognises the content; the message says what was tried.
    """
    found = detect(source)
    if found is not None:
        return found
    if source.size == 0:
        raise UnknownFormat(source.path, "is empty")
    if nsys_sqlite.written_by_us(source.head()):
        raise UnknownFormat(
            source.path,
            "a database that traceanalyzer wrote for SQL and Datasette, which is not read again",
            hint="give the trace it was made of, or a Parquet file of that",
        )
    if nsys_sqlite.no_database(source.head(), source.path):
        raise UnknownFormat(
            source.path,
            "named like an SQLite database and is none: another file, or encrypted",
            hint="export the report again: nsys export --type sqlite REPORT",
        )
    if pickled := memory_snapshot.no_snapshot(source):
        raise UnknownFormat(
            source.path,
            f"{pickled}, but no memory snapshot; nothing in it was executed",
            hint="torch.cuda.memory._dump_snapshot(FILE) writes a snapshot",
        )
    if known := foreign.recognise(source.head(), source.path):
        raise UnknownFormat(source.path, known.what, hint=known.hint)
    names = ", ".join(f.name for f in formats())
    is_object = source.head().lstrip().startswith(b"{")
    unknown = "is JSON without traceEvents" if is_object else "is no format we know"
    what = source.damage or unknown
    raise UnknownFormat(
        source.path,
        f"{what} (tried {names}{_told_unusable()})",
        hint="--format NAME overrides the detection",
    )


def _recognises(candidate: Format, head: bytes, path: str) -> bool:
    try:
        return bool(candidate.sniff(head, path))
    except Exception:  # noqa: BLE001 - somebody else's parser, asked about a file that is not its
        return False


def _told_unusable() -> str:
    return f"; could not load {', '.join(unusable())}" if unusable() else ""
