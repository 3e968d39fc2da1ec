"""Which parser reads a file: decided by its first bytes, never by its name alone."""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import PurePath

from traceanalyzer.errors import OptionError, UnknownFormat
from traceanalyzer.parsers import chrome_trace
from traceanalyzer.parsers.contract import Format
from traceanalyzer.parsers.source import Source

_BLANK = b"\0 \t\r\n"
_EMPTY = "record it again, and stop the profiler before the program ends"
_AGAIN = "copy or record it again: no event can be read"
_FORMATS = "--input-format NAME overrides the detection, --input-format help lists the names"
#: Reason for an empty file of ``export_stacks``.
_NO_STACKS = (
    "export_stacks of PyTorch 1.13 to 2.0 needs with_stack=True and experimental_config="
    "torch._C._profiler._ExperimentalConfig(verbose=True)"
)

#: Other packages register a Format under this entry-point group.
ENTRY_POINTS = "traceanalyzer.parsers"


@cache
def _built_in() -> tuple[Format, ...]:
    """Import and return the built-in formats; that takes longer than detecting a Kineto trace."""
    from traceanalyzer.parsers import (
        collapsed,
        flight_recorder,
        foreign,
        itwinai,
        memory_snapshot,
        nccl_inspector,
        ncu_csv,
        ncu_rep,
        nsys_sqlite,
        parquet,
        perfetto,
        printed_text,
        py_spy_dump,
        request_log,
        rocpd,
        speedscope,
    )

    modules = (
        *(chrome_trace, parquet, foreign, nsys_sqlite, rocpd, perfetto, memory_snapshot),
        *(flight_recorder, nccl_inspector, request_log, py_spy_dump, speedscope, ncu_csv, ncu_rep),
        *(printed_text, itwinai, collapsed),
    )
    return (*(module.FORMAT for module in modules), nsys_sqlite.REPORT)


@cache
def formats() -> tuple[Format, ...]:
    """Return all formats by descending priority; built-in formats win over plugins of one name."""
    known = {f.name: f for f in _built_in()}
    for extra in _loaded()[0]:
        known.setdefault(extra.name, extra)
    return tuple(sorted(known.values(), key=lambda f: (-f.priority, f.name)))


def unusable() -> tuple[str, ...]:
    """Return the entry points that cannot be loaded, each with the reason."""
    return _loaded()[1]


def has_plug_ins() -> bool:
    """Whether another package adds a format."""
    return bool(_loaded()[0])


@cache
def _loaded() -> tuple[tuple[Format, ...], tuple[str, ...]]:
    """Return the formats of other packages, and those that failed to load with the reason."""
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
    """Return an entry point's Format, or the reason why it has none."""
    try:
        loaded = entry.load()
    except Exception as error:  # noqa: BLE001 - a third-party module may raise anything
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return loaded if isinstance(loaded, Format) else f"{entry.value} is not a Format"


def by_name(name: str) -> Format:
    """Return the format of this name.

    Raises:
        OptionError: unknown name; the message lists the formats.
    """
    for candidate in formats():
        if candidate.name == name:
            return candidate
    known = ", ".join(f.name for f in formats())
    raise OptionError(f"unknown format {name!r}; choose one of {known}{_unusable_text()}")


def detect(source: Source) -> Format | None:
    """Return the format whose parser recognises the content, or None.

    Raises:
        InputError: the file cannot be read or decompressed.
    """
    head = source.head()
    if chrome_trace.is_kineto(head):
        return chrome_trace.FORMAT
    # unambiguous built-in formats first: loading entry points of installed packages takes time
    sure = sorted((f for f in _built_in() if f.priority > 0), key=lambda f: -f.priority)
    match = next((f for f in sure if _recognises(f, head, source.path)), None)
    match = match or next((f for f in formats() if _recognises(f, head, source.path)), None)
    from traceanalyzer.parsers import printed_text

    return match or (printed_text.FORMAT if printed_text.is_far_in(source) else None)


def require(source: Source) -> Format:
    """Return the format of a file.

    Raises:
        InputError: the file cannot be read or decompressed.
        UnknownFormat: no parser recognises the content.
    """
    if (detected := detect(source)) is not None:
        return detected
    from traceanalyzer.parsers import foreign, memory_snapshot, nsys_sqlite

    if not source.head().strip(_BLANK) and not source.damage:
        is_stacks = "stacks" in PurePath(source.path).name
        content = "only NUL bytes or blanks" if source.head() else "an empty file"
        raise UnknownFormat(source.path, content, hint=_NO_STACKS if is_stacks else _EMPTY)
    if nsys_sqlite.written_by_us(source.head()):
        raise UnknownFormat(
            source.path,
            "a database that traceanalyzer exported for SQL and Datasette; it cannot be read back",
            hint="pass the original trace or a Parquet file of it",
        )
    if nsys_sqlite.is_misnamed(source.head(), source.path):
        raise UnknownFormat(
            source.path,
            "not an SQLite database despite its name (another format, or encrypted)",
            hint="export the report again: nsys export --type sqlite REPORT",
        )
    if pickled := memory_snapshot.describe_pickle(source):
        raise UnknownFormat(
            source.path,
            f"{pickled}, not a memory snapshot; no code in it was executed",
            hint="torch.cuda.memory._dump_snapshot(FILE) writes a snapshot",
        )
    if known := foreign.recognise(source.head(), source.path):
        raise UnknownFormat(source.path, known.what, hint=known.hint)
    is_object = source.head().lstrip().startswith(b"{")
    unknown = "JSON without traceEvents" if is_object else "unknown file format"
    if source.damage:
        raise UnknownFormat(source.path, source.damage, hint=_AGAIN)
    raise UnknownFormat(source.path, f"{unknown}{_unusable_text()}", hint=_FORMATS)


def _recognises(candidate: Format, head: bytes, path: str) -> bool:
    try:
        return bool(candidate.sniff(head, path))
    except Exception:  # noqa: BLE001 - a third-party parser may raise anything on a foreign file
        return False


def _unusable_text() -> str:
    return f" (could not load {', '.join(unusable())})" if unusable() else ""
