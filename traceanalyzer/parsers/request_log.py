"""Request logs of inference engines: results of benchmarks, and spans of OpenTelemetry, as JSON.

``vllm bench serve --save-result --save-detailed`` writes an object, or one per line
(``--append-result``), or a list of them (``vllm bench sweep``), ``sglang.bench_serving
--output-details`` one per line. Spans are those of a collector (OTLP) or of Jaeger. Each request is
a row of ``aggregates``, of form ``requests``: its block is the run in the file; rows without
``row`` have what the log states of the run.

Specification: <https://docs.vllm.ai/en/latest/benchmarking/cli.html>
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from traceanalyzer.errors import MalformedInput
from traceanalyzer.parsers.contract import Format, Progress, Selection
from traceanalyzer.parsers.source import Source
from traceanalyzer.parsers.tables import as_table
from traceanalyzer.schema import LAST_EPOCH_NS
from traceanalyzer.trace import Meta, Trace, issue_rows
from traceanalyzer.units import NS_PER_S
from traceanalyzer.vocabulary import REQUEST_FORM, REQUEST_LOG

if TYPE_CHECKING:
    import polars as pl

#: Keys of the result of a benchmark, also with sorted keys (long lists before the statistics), and
#: of one of which only the statistics were kept.
_BENCHMARKS = (
    (b'"request_throughput"', b'"completed"', b'"duration"'),
    (b'"backend"', b'"completed"', b'"date"'),
    (b'"mean_ttft_ms"', b'"mean_tpot_ms"', b'"mean_itl_ms"'),
)
_SPANS = re.compile(rb'\s*+\{\s*+"(?:resourceSpans|data)"\s*+:\s*+\[')
_OF_SPANS = (b'"scopeSpans"', b'"instrumentationLibrarySpans"', b'"operationName"')
#: Statistics that a benchmark states, in ms, and numbers of the whole run.
_STATED = re.compile(
    r"(?:mean|median|std|max|p\d{1,2}(?:\.\d{1,3})?)_(?:ttft|tpot|itl|e2el|e2e_latency)_ms"
    r"|duration|completed|request_throughput|output_throughput|max_concurrency|request_rate"
)
_TEXTS = ("backend", "model_id", "date")
#: Metrics of a request by attribute of its span; times are in s.
_TIMES = {
    "gen_ai.latency.time_to_first_token": "ttft_ns",
    "gen_ai.latency.e2e": "e2e_ns",
    "gen_ai.latency.time_in_queue": "queue_ns",
    "gen_ai.latency.time_in_model_prefill": "prefill_ns",
    "gen_ai.latency.time_in_model_decode": "decode_ns",
}
_TOKENS = {
    f"gen_ai.usage.{of}_tokens": f"{name}_tokens"
    for name, attributes in (("input", ("prompt", "input")), ("output", ("completion", "output")))
    for of in attributes
}
#: Events of a request in the engine's scheduler (journey tracing of vLLM).
_EVENT = re.compile(r"journey\.(QUEUED|SCHEDULED|FIRST_TOKEN|PREEMPTED|FINISHED)")
#: Spans of SGLang's scheduler within that of a request.
_STAGES = {
    "prefill_waiting": "queue_ns", "prefill_forward": "prefill_ns", "decode_forward": "decode_ns"
}  # fmt: skip
#: Larger numbers of a request are damage, in s and tokens.
_DEEPEST = 4
_MOST_S, _MOST_TOKENS, _MOST_STATED = 1e7, 1e9, 1e12
_LONGEST = 200

_Numbers = dict[str, float]


class _Request(NamedTuple):
    """One request: its name, error, start (ns, absolute or of the client's clock), and numbers."""

    name: str
    error: str
    start_ns: float | None
    numbers: _Numbers
    itls_ns: list[float]


@dataclass
class _Run:
    """One benchmark, or all spans of a file."""

    line: int
    numbers: _Numbers = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    requests: list[_Request] = field(default_factory=list)


@dataclass
class _Read:
    """The runs read so far, and what could not be read."""

    runs: list[_Run] = field(default_factory=list)
    issues: dict[tuple[str, str], list[Any]] = field(default_factory=dict)

    def note(self, code: str, place: str, severity: str = "data_loss") -> None:
        """Count an irregularity."""
        self.issues.setdefault((severity, code), [0, place])[0] += 1

    def number(self, value: Any, most: float, place: str) -> float | None:
        """Return a number from 0 to ``most``; None, which is counted, for other values."""
        if isinstance(value, str) and re.fullmatch(r"\d{1,19}", value, re.ASCII):
            value = int(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most:
            return float(value)
        if value is not None:
            self.note("number-out-of-range", place)
        return None


def sniff(head: bytes, path: str) -> bool:  # noqa: ARG001 - a parser's signature
    """Whether the file begins with the result of a benchmark, or with spans."""
    if _SPANS.match(head):
        return any(key in head for key in _OF_SPANS)
    is_json = re.match(rb"\s*+(?:\{|\[\s*+\{)", head) is not None
    is_result = any(all(key in head for key in keys) for keys in _BENCHMARKS)
    return is_json and is_result and b'"traceEvents"' not in head


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:  # noqa: ARG001 - always read wholly
    """Read the requests of one file.

    Raises:
        MalformedInput: no request and no statistics are in it.
        UnreadableFile: the file cannot be read.
    """
    text = b"".join(source.blocks(progress=progress))
    read = _Read()
    spans: list[_Span] = []
    for line, document in _documents(text, read):
        if not isinstance(document, dict):
            read.note("bad-line", f"line {line}")
        elif "resourceSpans" in document or "data" in document:
            spans += _spans(document)
        else:
            read.runs.append(_benchmark(document, line, read))
    epoch = None
    if spans:
        of_spans = _of_spans(spans, read)
        epoch = min((int(one.start_ns) for one in of_spans if one.start_ns), default=None)
        read.runs.append(_Run(1, requests=of_spans))
    if not any(run.requests or run.numbers for run in read.runs):
        damaged = ("data_loss", "bad-line") in read.issues
        where = f"in {len(spans):,} spans" if spans else "in this log"
        raise MalformedInput(
            source.path,
            "incomplete or damaged JSON" if damaged else f"no requests {where}",
            hint="record with vllm bench serve --save-result --save-detailed, or serve with "
            "--otlp-traces-endpoint",
        )
    if source.damage:
        read.note("damaged-file", source.damage)
    issues = [(*key, count, place) for key, (count, place) in read.issues.items()]
    meta = Meta(source.path, REQUEST_LOG, epoch_ns=epoch)
    return Trace(sources=(meta,), aggregates=_table(read.runs), issues=issue_rows(issues, None))


def _documents(text: bytes, read: _Read) -> Iterator[tuple[int, Any]]:
    """Yield the object of a file, or that of each line, and its line; Python writes NaN as such."""
    try:
        whole = json.loads(text, parse_constant=lambda _: None)
        yield from ((1, one) for one in (whole if isinstance(whole, list) else [whole]))
        return
    except (ValueError, RecursionError):
        pass
    for number, line in enumerate(text.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            read.note("bad-line", f"line {number}")


# --- results of benchmarks -----------------------------------------------------------------------


def _benchmark(document: Mapping[str, Any], line: int, read: _Read) -> _Run:
    """Return a run of vLLM's or SGLang's benchmark; times are in s, statistics in ms."""
    run = _Run(line)
    for name, value in document.items():
        if _STATED.fullmatch(name) and value != "inf":
            number = read.number(value, _MOST_STATED, f"line {line}, {name}")
            run.numbers |= {} if number is None else {name: number}
    if run.numbers.get("completed") == 0:  # statistics of nothing
        run.numbers = {name: n for name, n in run.numbers.items() if not name.endswith("_ms")}
    run.texts = {name: str(document[name])[:_LONGEST] for name in _TEXTS if document.get(name)}
    columns = {
        name: _list(document, name)
        for name in ("ttfts", "itls", "input_lens", "output_lens", "start_times", "errors")
    }
    count = len(columns["ttfts"])
    unequal = [name for name, values in columns.items() if values and len(values) != count]
    if count and unequal:
        read.note("unequal-lists", f"line {line}: {unequal[0]}")
        count = min(count, *(len(columns[name]) for name in unequal))
    for place in range(count):
        row = {name: values[place] for name, values in columns.items() if values}
        run.requests.append(_measured(row, f"line {line}, request {place}", read))
    if not count:
        read.note("no-details", f"line {line}", "notice")
    return run


def _list(document: Mapping[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    return value if isinstance(value, list) else []


def _measured(row: Mapping[str, Any], place: str, read: _Read) -> _Request:
    """Return a request of a benchmark; one without an answer has an error and no times."""
    gaps = row.get("itls")
    itls = [read.number(gap, _MOST_S, place) for gap in gaps] if isinstance(gaps, list) else []
    times = [NS_PER_S * gap for gap in itls if gap is not None]
    ttft = read.number(row.get("ttfts"), _MOST_S, place)
    counts = {
        name: read.number(row.get(key), _MOST_TOKENS, place)
        for name, key in (("input_tokens", "input_lens"), ("output_tokens", "output_lens"))
    }
    error = str(row.get("errors") or "").strip()
    if not error and not ttft and not counts["output_tokens"]:
        error = "no answer"
    start = row.get("start_times")
    start_ns = None
    if isinstance(start, int | float) and abs(start) < _MOST_S * 100:
        start_ns = NS_PER_S * float(start)
    numbers = {name: value for name, value in counts.items() if value is not None}
    if ttft is not None and not error:
        numbers |= {"ttft_ns": NS_PER_S * ttft, "e2e_ns": NS_PER_S * ttft + sum(times)}
    last = (error.splitlines() or [""])[-1][:_LONGEST]
    return _Request("", last, start_ns, numbers, [] if error else times)


# --- spans ---------------------------------------------------------------------------------------


class _Span(NamedTuple):
    """A span: name, ids, start and end in ns since the Unix epoch, attributes, events by time."""

    name: str
    id: str
    parent: str
    start_ns: int | None
    end_ns: int | None
    attributes: dict[str, Any]
    events: list[tuple[str, int]]


def _spans(document: Mapping[str, Any]) -> Iterator[_Span]:
    """Yield the spans of a document of OTLP, whose times are in ns, or of Jaeger, in us."""
    for resource in _objects(document.get("resourceSpans")):
        for scope in _objects(
            resource.get("scopeSpans", resource.get("instrumentationLibrarySpans"))
        ):
            for span in _objects(scope.get("spans")):
                events = [
                    (one.get("name"), one.get("timeUnixNano"))
                    for one in _objects(span.get("events"))
                ]
                times = tuple(_ns(span.get(f"{edge}TimeUnixNano")) for edge in ("start", "end"))
                ids = (str(span.get("name")), span.get("spanId"), span.get("parentSpanId"))
                yield _span(ids, times, span.get("attributes"), events)
    for trace in _objects(document.get("data")):
        for span in _objects(trace.get("spans")):
            logs = _objects(span.get("logs"))
            events = [
                (_attributes(log.get("fields")).get("event"), log.get("timestamp")) for log in logs
            ]
            parent = next((one.get("spanID") for one in _objects(span.get("references"))), None)
            start, length = (_ns(span.get(key), 1000) for key in ("startTime", "duration"))
            times = (start, None if start is None or length is None else start + length)
            ids = (str(span.get("operationName")), span.get("spanID"), parent)
            yield _span(ids, times, span.get("tags"), events, 1000)


def _span(
    ids: tuple[str, Any, Any], times: tuple[int | None, ...], attributes: Any, events: list[Any],
    factor: int = 1,
) -> _Span:  # fmt: skip
    of_events = [(str(name), _ns(time, factor)) for name, time in events]
    known = [(name, ns) for name, ns in of_events if ns is not None]
    name, id_, parent = ids
    start, end = times
    return _Span(name, str(id_), str(parent or ""), start, end, _attributes(attributes), known)


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    return (one for one in value if isinstance(one, dict)) if isinstance(value, list) else iter(())


def _ns(value: Any, factor: int = 1) -> int | None:
    """Return a time since the Unix epoch in ns; None if it is not one."""
    text = str(value)
    ns = factor * int(text) if re.fullmatch(r"\d{1,19}", text, re.ASCII) else 0
    return ns if 0 < ns <= LAST_EPOCH_NS else None


def _attributes(values: Any) -> dict[str, Any]:
    """Return attributes as plain values: ``{"key": .., "value": {"doubleValue": 1.0}}``."""
    plain = {}
    for one in _objects(values):
        value = one.get("value")
        if isinstance(value, dict):
            value = next(iter(value.values()), None)
        plain[str(one.get("key"))] = value
    return plain


def _of_spans(spans: Sequence[_Span], read: _Read) -> list[_Request]:
    """Return the requests of spans; the engine's events of a request are in a child of its span."""
    requests: dict[str, _Request] = {}
    stages: dict[str, _Numbers] = {}
    for span in spans:
        names = {*_TIMES} & span.attributes.keys()
        if names:
            requests[span.id] = _of_attributes(span, read)
        if of_events := _stages([event for event in span.events if _EVENT.fullmatch(event[0])]):
            stages[span.id if names or not span.parent else span.parent] = of_events
    _divide(requests, spans)
    for key, of_events in stages.items():
        queued = of_events.pop("start_ns")
        known = requests.get(key) or _Request(key, "", None, {}, [])
        # the span begins in the API server, before the request is in the queue
        whole = {n: v for n, v in known.numbers.items() if n in ("ttft_ns", "e2e_ns")}
        numbers = {**known.numbers, **of_events, **whole}
        requests[key] = known._replace(start_ns=known.start_ns or queued, numbers=numbers)
    return sorted(requests.values(), key=lambda one: (one.start_ns or 0, one.name))


def _divide(requests: dict[str, _Request], spans: Sequence[_Span]) -> None:
    """Divide requests by the spans of SGLang's scheduler.

    If the answer is not streamed, the server has its first token with the last one.
    """
    parents = {span.id: span.parent for span in spans}
    for span in spans:
        if (name := _STAGES.get(span.name)) and span.start_ns and span.end_ns:
            key = span.parent
            for _ in range(_DEEPEST):
                key = key if key in requests else parents.get(key, "")
            if (one := requests.get(key)) and one.start_ns:
                length, begin = float(span.end_ns - span.start_ns), span.start_ns - one.start_ns
                one.numbers[name] = length
                if name == "decode_ns" and one.numbers.get("ttft_ns", 0) > begin + length / 2:
                    one.numbers["ttft_ns"] = begin


def _of_attributes(span: _Span, read: _Read) -> _Request:
    place = f"span {span.id[:40]}"
    numbers = {}
    for key, name in (*_TIMES.items(), *_TOKENS.items()):
        factor, most = (NS_PER_S, _MOST_S) if key in _TIMES else (1, _MOST_TOKENS)
        value = read.number(span.attributes.get(key), most, place)
        if value is not None:
            numbers[name] = factor * value
    name = str(span.attributes.get("gen_ai.request.id") or span.id)[:_LONGEST]
    return _Request(name, "", span.start_ns, numbers, [])


def _stages(events: list[tuple[str, int]]) -> _Numbers:
    """Return the times of a request by the events of the scheduler; empty without a first token.

    ``prefill_ns`` and ``decode_ns`` are without the time in which the request was preempted.
    """
    times: dict[str, list[int]] = {}
    for name, ns in sorted(events, key=lambda event: event[1]):
        times.setdefault(name.partition(".")[2], []).append(ns)
    if not all(name in times for name in ("QUEUED", "SCHEDULED", "FIRST_TOKEN")):
        return {}
    queued, scheduled, first = (times[name][0] for name in ("QUEUED", "SCHEDULED", "FIRST_TOKEN"))
    last = times.get("FINISHED", [first])[-1]
    pauses = [
        (begin, next((ns for ns in times["SCHEDULED"] if ns >= begin), last))
        for begin in times.get("PREEMPTED", ())
    ]
    before = sum(min(end, first) - min(begin, first) for begin, end in pauses)
    paused = sum(end - begin for begin, end in pauses)
    return {
        "start_ns": queued,
        "ttft_ns": first - queued,
        "e2e_ns": last - queued,
        "queue_ns": scheduled - queued,
        "prefill_ns": first - scheduled - before,
        "decode_ns": last - first - (paused - before),
        "preempted_ns": paused,
        "preemptions": len(pauses),
    }


# --- table ---------------------------------------------------------------------------------------


def _table(runs: list[_Run]) -> pl.DataFrame:
    """Return the table ``aggregates``; starts are those since the first start of the run."""
    import polars as pl

    rows: list[tuple[Any, ...]] = []
    for block, run in enumerate(runs):
        place: tuple[Any, ...] = (block, None, None, run.line)
        rows += [(*place, name, value, None) for name, value in run.numbers.items()]
        rows += [(*place, name, None, text) for name, text in run.texts.items()]
        begin = min((one.start_ns for one in run.requests if one.start_ns is not None), default=0)
        for row, one in enumerate(run.requests):
            place = (block, row, one.name or None, run.line)
            numbers = dict(one.numbers)
            if one.start_ns is not None:
                numbers["start_ns"] = one.start_ns - begin
            rows += [(*place, name, value, None) for name, value in numbers.items()]
            rows += [(*place, "itl_ns", value, None) for value in one.itls_ns]
            if one.error:
                rows.append((*place, "error", None, one.error))
    read_as = {
        "block": pl.UInt32, "row": pl.UInt32, "name": pl.String, "line": pl.Int64,
        "metric": pl.String, "value": pl.Float64, "text": pl.String,
    }  # fmt: skip
    frame = pl.DataFrame(rows, schema=read_as, orient="row")
    full = frame.with_columns(form=pl.lit(REQUEST_FORM), is_cut=pl.lit(value=False))
    return as_table(full, "aggregates")


FORMAT: Format = Format(
    name=REQUEST_LOG,
    suffixes=(".json", ".jsonl"),
    description="request logs: benchmarks of vLLM and SGLang, OpenTelemetry spans as JSON",
    sniff=sniff,
    parse=parse,
    priority=58,
)
