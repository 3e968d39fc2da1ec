"""SQL on the tables of :mod:`traceanalyzer.schema`, by the SQL of polars, read-only.

The text comes from strangers, and polars would execute ``read_csv('/etc/passwd')``. So it is split
into tokens here, only known tokens and functions are accepted, and polars gets a text that is
written from these tokens, without comments: both see the same query.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import polars as pl

from traceanalyzer import schema
from traceanalyzer.analyzers.base import Reading
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.machine import cores, free_memory
from traceanalyzer.result import Result, Table, View
from traceanalyzer.run import workers
from traceanalyzer.run.loop import notes_on, with_notes
from traceanalyzer.run.pieces import OpenedInputs, checked_how
from traceanalyzer.trace import Inputs, Trace, concat
from traceanalyzer.units import format_bytes, format_count
from traceanalyzer.vocabulary import KINDS

#: Limits of a query; deeper ones could exhaust the stack of the SQL parser.
_LONGEST, _MOST_TOKENS, _DEEPEST = 20_000, 1_000, 30

#: Limits of a query that may inflate the data; it runs in a process of its own.
_MEMORY_BYTES, _MEMORY_FRAC, _SECONDS = 8 << 30, 0.5, 60
#: Words of queries whose result may be much larger than the tables.
_INFLATING = frozenset(("lpad", "rpad", "replace", "concat", "concat_ws", "join", "union", "with"))
_PROC = Path("/proc/self/statm")

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n\f]+|--[^\n]*|/\*(?s:.*?)\*/)
    |(?P<text>'(?:[^']|'')*')
    |(?P<quoted>"[^"\\\x00-\x1f]+")
    |(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?!\w))
    |(?P<word>[A-Za-z_][A-Za-z_0-9]*)
    |(?P<operator>::|<=|>=|<>|!=|\|\||!~\*|!~|~\*|[-+*/%=<>~(),.])
    """,
    re.VERBOSE,
)


def _split(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text))


#: Functions of a value, of many values, and of windows.
_FUNCTIONS = _split(
    """
    abs acos asin atan atan2 cbrt ceil ceiling cos degrees exp floor ln log log10 log1p log2
    mod pi pow power radians round sign sin sqrt tan trunc coalesce greatest least if ifnull
    nullif cast try_cast bit_length char_length character_length length octet_length concat
    concat_ws contains ends_with starts_with initcap left right lower upper lpad rpad ltrim
    rtrim trim regexp_like replace reverse split_part strpos position substr substring avg
    count first last max median min quantile_cont quantile_disc stddev stddev_pop stddev_samp
    stdev sum var var_pop var_samp variance corr covar covar_pop covar_samp row_number rank
    dense_rank lag lead first_value last_value
    """
)
#: Words before a parenthesis that are no functions.
_BEFORE_PARENTHESIS = _split(
    """
    select distinct all from join on using where and or not in exists as over by having filter
    case when then else between like ilike is union intersect except limit offset exclude
    """
)
_REFUSED = _split(
    """
    alter analyze attach call checkpoint comment commit copy create deallocate delete describe
    detach drop execute explain export grant import insert install into lateral load merge
    natural pragma prepare recursive rename reset revoke rollback set show truncate unnest
    update use vacuum columns cross
    """
)
_AFTER_FROM = _split("where group having order limit offset union intersect except")

#: Columns that parsers may leave null.
_MAY_BE_UNUSED = ("correlation", "external_id", "bytes", "address", "stack", "weight")
#: Kinds of :func:`traceanalyzer.read` that fill a table.
_KIND_OF_TABLE = {"counters": "counter", "flows": "flow", "lanes": "lane", "metrics": "metric"}
#: Types that every output format can write; others become text.
_TYPES = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64)
_WRITTEN = (*_TYPES, pl.Float32, pl.Float64, pl.Boolean, pl.String)


@dataclass(frozen=True)
class QueryResult(Result):
    """Rows selected by a query.

    Attributes:
        sql: the query.
        frame: the rows, with the columns of the query.
    """

    sql: str
    frame: pl.DataFrame

    def view(self) -> View:
        """Return the rows as one table."""
        columns = {name: name for name in self.frame.columns}
        table = Table("rows", "Rows", self.frame, columns, whole=True, hide_first=None)
        return View(
            title="Query result",
            verdict=f"{format_count(self.frame.height, 'row')}.",
            tables=(table,),
            scalars={"sql": self.sql},
        )


def query(inputs: Inputs, sql: str, **reading: Unpack[Reading]) -> QueryResult:
    """Return the rows that an SQL query selects from the tables of all inputs, on one clock.

    The tables are those of ``docs/schema.md``. ``events`` also has ``event``, its row number, which
    joins it to ``collectives``, ``launch_configs`` and ``memory_totals``; these also have ``rank``.
    Only one SELECT is accepted, which reads nothing but these tables. All selected inputs are in
    memory at once, and read one after another.

    Args:
        inputs: a trace, a file or a folder, or several of them, of any format.
        sql: one SELECT or WITH ... SELECT.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: the inputs have no rows at all.
        OptionError: the SQL is refused or wrong; the message names known tables and columns.
    """
    parsed = _Query.parse(sql)
    how = replace(checked_how("query", reading), **parsed.selection())
    opened = OpenedInputs(inputs, None, how, split=False)
    traces: list[Trace] = []
    for one in opened:
        traces += one
        opened.state.truncated += [one.path] if one.truncated else []
    opened.require(any_part=bool(traces))
    if not traces:
        raise MissingData("no input has any rows")
    return with_notes(QueryResult(sql, parsed.rows(concat(traces))), notes_on(opened.state))


@dataclass(frozen=True)
class _Query:
    """A query that was accepted: its text for polars, and what it names.

    Attributes:
        text: the query, written from its tokens.
        names: all words and quoted names, in lower case.
        whole: whether a ``*`` selects all columns.
    """

    text: str
    names: frozenset[str]
    whole: bool

    @classmethod
    def parse(cls, sql: str) -> _Query:
        """Split and check a query.

        Raises:
            OptionError: it is not one SELECT, or uses what is not allowed.
        """
        tokens = _tokens(sql)
        _check(tokens)
        texts = [text for _, text in tokens]
        stars = [number for number, text in enumerate(texts) if text == "*"]
        before = {texts[number - 1].lower() for number in stars}
        names = frozenset(t.strip('"').lower() for kind, t in tokens if kind in ("word", "quoted"))
        whole = bool(before & {"select", ",", ".", "distinct", "all"})
        return cls(" ".join(texts), names, whole)

    @property
    def may_inflate(self) -> bool:
        """Whether the result may be much larger than the tables."""
        return bool(self.names & _INFLATING) or "||" in self.text

    @property
    def unused(self) -> tuple[str, ...]:
        """Columns and tables that the query does not name."""
        columns = () if self.whole else _MAY_BE_UNUSED
        tables = (name for name in schema.EVENT_TABLES if name != "flows")
        return tuple(name for name in (*columns, *tables) if name not in self.names)

    def selection(self) -> dict[str, Any]:
        """Return the fields of :class:`How` that limit what is read.

        Events are always read: ranks, repeated recordings and time windows follow from them.
        """
        kinds = (kind for table, kind in _KIND_OF_TABLE.items() if table in self.names)
        columns = tuple(name for name in schema.ON_REQUEST if name in self.names)
        return {"columns": columns, "unused": self.unused, "kinds": (*KINDS, *kinds)}

    def rows(self, trace: Trace) -> pl.DataFrame:
        """Execute the query.

        Raises:
            OptionError: polars rejects it.
        """
        tables = {
            name: frame.drop(self.unused, strict=False)
            for name, frame in _with_ranks(trace).items()
            if name in self.names
        }
        task = (self.text, tables, min(free_memory() * _MEMORY_FRAC, _MEMORY_BYTES), _SECONDS)
        frame: pl.DataFrame | str | workers.Ended | None
        if not self.may_inflate:
            frame = _executed(self.text, tables)
        else:
            # a worker with one thread is on a thread of polars, which cannot handle signals
            threads = max(cores(), 2)
            with closing(workers.each(_executed_within, [task], 1, threads=threads)) as answers:
                frame = next(answers)
        if isinstance(frame, workers.Ended):
            raise OptionError(
                f"the query was stopped: it needs more than {format_bytes(int(task[2]))} of "
                f"memory or {_SECONDS} s; select fewer rows, or shorter texts"
            )
        if isinstance(frame, str) or frame is None:
            raise OptionError(frame or "the query cannot be executed")
        return frame.with_columns(
            # durations have no cast to text
            pl.col(name).dt.to_string()
            if dtype == pl.Duration
            else pl.col(name).cast(pl.String, strict=False)
            for name, dtype in frame.schema.items()
            if dtype not in _WRITTEN
        )


def _executed(text: str, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame | str:
    """Execute a query; return its rows, or why it cannot be executed."""
    texts = pl.col(pl.Categorical, pl.Enum).cast(pl.String)
    frames = {name: frame.lazy().with_columns(texts) for name, frame in tables.items()}
    try:
        with pl.SQLContext(frames, register_globals=False, eager=False) as context:
            return context.execute(text).collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        return _explained(str(error), tables)
    except (TypeError, ValueError, OverflowError) as error:
        return f"the query cannot be executed: {_one_line(str(error))}"


def _executed_within(
    task: tuple[str, Mapping[str, pl.DataFrame], float, int],
) -> pl.DataFrame | str:
    """Execute a query in this process, which ends if it needs more memory (bytes) or time (s)."""
    text, tables, memory, seconds = task
    with suppress(ImportError):
        import resource

        pages = int(_PROC.read_text().split()[0]) if _PROC.exists() else 0
        used = pages * resource.getpagesize()
        limits = {resource.RLIMIT_AS: used + int(memory), resource.RLIMIT_CORE: 0}
        for what, limit in limits.items():
            resource.setrlimit(what, (limit, resource.getrlimit(what)[1]))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
    return _executed(text, tables)


def _tokens(sql: str) -> list[tuple[str, str]]:
    """Return kind and text of each token; comments and a last semicolon are dropped."""
    if len(sql) > _LONGEST:
        raise OptionError(f"the query is longer than {_LONGEST:,} characters")
    sql = sql.strip().removesuffix(";")
    tokens: list[tuple[str, str]] = []
    place = 0
    while place < len(sql):
        match = _TOKEN.match(sql, place)
        if match is None:
            if sql[place] == ";":
                raise OptionError("only one SELECT statement is allowed: nothing may follow a ';'")
            raise OptionError(
                f"unexpected {sql[place]!r} at character {place + 1} of the query; use '...' for "
                'text and "..." for names'
            )
        kind, text, place = str(match.lastgroup), match[0], match.end()
        if kind == "text" and ("\\'" in text or "\x00" in text):
            raise OptionError("a text must not contain \\' or a null character; write '' for '")
        if kind != "space":
            tokens.append((kind, text))
    if len(tokens) > _MOST_TOKENS:
        raise OptionError(f"the query has more than {_MOST_TOKENS:,} words and signs")
    return tokens


def _check(tokens: Sequence[tuple[str, str]]) -> None:
    """Raise an error unless the tokens are one SELECT that uses known functions only."""
    lower = [text.lower() if kind == "word" else text for kind, text in tokens]
    if not lower or lower[0] not in ("select", "with") or "select" not in lower:
        raise OptionError("the query must be one SELECT (or WITH ... SELECT) statement")
    in_from = [False]
    for number, (kind, text) in enumerate(tokens):
        word = lower[number]
        after = lower[number + 1] if number + 1 < len(lower) else ""
        if kind == "word" and word in _REFUSED and lower[number - 1] != ".":
            raise OptionError(f"{text.upper()} is not allowed in a query: it is read-only")
        if word in ("from", "join") and kind == "word" and after.startswith("'"):
            raise OptionError(f"{after} is not a table; {_known_tables()}")
        if after == "(" and kind in ("word", "quoted"):
            name = text.strip('"').lower()
            structural = kind == "word" and word in _BEFORE_PARENTHESIS
            # `WITH a AS (`, `FROM (` and the like; every other name is a call
            if not structural and name not in _FUNCTIONS:
                raise OptionError(f"function {name} is not allowed in a query; see docs/query.md")
        if word == "(":
            in_from.append(False)
            if len(in_from) > _DEEPEST:
                raise OptionError(f"the query has more than {_DEEPEST} nested parentheses")
        elif word == ")" and len(in_from) > 1:
            in_from.pop()
        elif kind == "word" and (word == "from" or word in _AFTER_FROM):
            in_from[-1] = word == "from"
        elif word == "," and in_from[-1]:
            raise OptionError("FROM takes one table; write JOIN ... ON for others")


def _with_ranks(trace: Trace) -> dict[str, pl.DataFrame]:
    """Return the tables: ``events`` with row numbers, and tables of events with the rank."""
    tables = trace.tables
    ranks = trace.events["rank"]
    for name in schema.EVENT_TABLES:
        if "rank" not in tables[name].columns:
            tables[name] = tables[name].with_columns(rank=ranks.gather(tables[name]["event"]))
    return tables | {"events": trace.events.with_row_index("event")}


def _explained(message: str, tables: Mapping[str, pl.DataFrame]) -> str:
    """Return one line for an error of polars, with the names that exist."""
    line = _one_line(message)
    if match := re.search(r"relation '(.*?)' was not found", line):
        return f"unknown table {match[1]!r}; {_known_tables()}"
    if match := re.search(r"unable to find column \"(.*?)\"", line):
        columns = "; ".join(f"{name}: {', '.join(columns_of(name))}" for name in tables)
        return f"unknown column {match[1]!r}; columns of {columns}"
    line = line.removeprefix("sql parser error: ")
    return f"the query cannot be executed: {line}"


def _one_line(message: str) -> str:
    first = message.partition("Resolved plan until failure")[0].strip().partition("\n")[0]
    return first if len(first) <= 300 else first[:300] + "..."


def columns_of(table: str) -> list[str]:
    """Return the columns of a table of queries."""
    names = [column.name for column in schema.TABLES[table]]
    if table == "events":
        return ["event", *names]
    return names if "rank" in names or table not in schema.EVENT_TABLES else [*names, "rank"]


def _known_tables() -> str:
    return f"tables: {', '.join(schema.TABLES)}"
