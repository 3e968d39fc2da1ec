"""Which events are communication, and what is known about each.

A kernel's description comes from, in this order: its own arguments; its name; the host event that
issued it (``record_param_comms`` or ``nccl:*``), found by External id, or through the launch call
that shares the kernel's correlation id and lies inside the host event. ``gpu_user_annotation``
rows are projections and never work.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import polars as pl

from traceanalyzer.analyzers.names import mapped, named
from traceanalyzer.frames import linking
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import (
    COMMUNICATION_PATTERN,
    HOST_COLLECTIVE_PREFIXES,
    LAUNCH_KINDS,
    NCCL_ANNOTATION_PREFIXES,
    NCCL_CALL,
    PARAM_COMMS,
    dtype_bytes,
)

_TOLD = ("dtype", "elements_in", "elements_out", "group", "group_size", "group_ranks", "seq")
_TEXT = ("collective", "dtype", "group", "group_ranks")


def communication(
    trace: Trace, work: pl.DataFrame, patterns: Sequence[str] = ()
) -> tuple[pl.DataFrame, bool]:
    """The communication events of one rank, each with what is known about it.

    Device work where there is any; else, as in CPU runs, the host events that run a collective
    (``gloo:*``, ``mpi:*``, ``ucc:*``, calls of MPI). ``patterns`` are regular expressions of
    further names. ``issued`` is the time at which the host asked for it, null where the trace does
    not tell.

    The second value says whether reading the launch calls too would tell more: kernels lack their
    message size, some host events describe collectives that no kernel is joined to, and no launch
    call has been read.

    Raises:
        OptionError: a pattern is not a regular expression.
    """
    found, wants_launches = _device_communication(trace, work, patterns), False
    if found.is_empty():
        found = _host_communication(trace, patterns).with_columns(issued="ts")
    else:
        found, wants_launches = _told_by_host(found, trace)
    dtype = mapped(found["dtype"], _plain_dtype)
    return found.with_columns(dtype=dtype, message_bytes=_message_bytes(found)), wants_launches


def _device_communication(
    trace: Trace, work: pl.DataFrame, patterns: Sequence[str]
) -> pl.DataFrame:
    """Device work that is communication by its name or its arguments, as its own row tells it."""
    by_name = named(work, [COMMUNICATION_PATTERN, *patterns])
    told = pl.col("event").is_in(trace.collectives["event"].implode())
    return _rows(trace, work.filter(by_name | told)["event"])


def _host_communication(trace: Trace, patterns: Sequence[str]) -> pl.DataFrame:
    hosts = trace.events.with_row_index("event").filter(pl.col("tid").is_not_null())
    runs = "^(?:" + "|".join(map(re.escape, HOST_COLLECTIVE_PREFIXES)) + ")"
    told = (pl.col("kind") == "mpi") & pl.col("event").is_in(trace.collectives["event"].implode())
    return _with_collectives(hosts.filter(named(hosts, [runs, *patterns]) | told), trace)


def _rows(trace: Trace, event: pl.Series) -> pl.DataFrame:
    """These rows of ``events``, with their numbers, beside their rows of ``collectives``."""
    return _with_collectives(trace.events[event].insert_column(0, event), trace)


def _with_collectives(events: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Events beside their rows of ``collectives`` (null where they have none), words as text."""
    told = trace.collectives.with_columns(pl.col(_TEXT).cast(pl.String))
    named = events.with_columns(pl.col("name").cast(pl.String))
    return named.join(told, on="event", how="left", maintain_order="left")


# --- the host's side -------------------------------------------------------------------------


def host_calls(trace: Trace) -> pl.DataFrame:
    """One row per call that issued a collective: where it ran and what it tells.

    ``record_param_comms`` encloses ``nccl:*`` and NCCL's own range, and each knows things that
    the other does not: rows that overlap on one thread are one call, described by whichever tells
    first. Columns: call, pid, tid, ts, end, external_ids, and the description.
    """
    issuing = "^(?:" + "|".join((PARAM_COMMS, *NCCL_ANNOTATION_PREFIXES, NCCL_CALL)) + ")"
    hosts = (
        trace.events.select("name", "tid", "dur")
        .with_row_index("event")
        .filter(pl.col("tid").is_not_null(), pl.col("dur").is_not_null())
    )
    rows = _rows(trace, hosts.filter(named(hosts, [issuing]))["event"])
    lane = ["pid", "tid"]
    end = pl.col("ts") + pl.col("dur")
    starts_new = pl.col("ts") >= end.shift(1).cum_max().over(lane)
    first_told = [pl.col(name).drop_nulls().first() for name in ("collective", *_TOLD)]
    return (
        rows.sort(*lane, "ts", "event")
        .with_columns(call=starts_new.fill_null(value=True).cum_sum())
        .group_by("call", *lane, maintain_order=True)
        .agg(
            pl.col("ts").min(),
            end.max().alias("end"),
            pl.col("external_id").drop_nulls().alias("external_ids"),
            *first_told,
        )
    )


def by_external_id(kernels: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """``event`` and ``call`` of each kernel that shares an External id with a host call.

    Recordings of 2022 and 2023 repeat the correlation id as External id: that joins nothing.
    """
    ids = calls.select("call", external_id="external_ids").explode("external_id")
    own = pl.col("external_id") != pl.col("correlation").fill_null(-1)
    asking = kernels.select("event", external_id=pl.when(own).then("external_id"))
    return _pairs(linking.link(ids, asking, ["external_id"]), ids, asking)


def by_correlation(
    kernels: pl.DataFrame, calls: pl.DataFrame, launches: pl.DataFrame
) -> pl.DataFrame:
    """``event`` and ``call`` of each kernel whose launch call lies inside a host call."""
    spans = calls.rename({"ts": "start"})
    inside = linking.enclosing(launches, spans, ["pid", "tid"]).drop_nulls("slice")
    called = inside.select("correlation", call=spans["call"].gather(inside["slice"]))
    return _pairs(linking.link(called, kernels, ["correlation"]), called, kernels)


def _pairs(found: pl.DataFrame, calls: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "event": kernels["event"].gather(found["right"]),
            "call": calls["call"].gather(found["left"]),
        }
    )


def _told_by_host(kernels: pl.DataFrame, trace: Trace) -> tuple[pl.DataFrame, bool]:
    """Fills what a kernel's own row leaves open from the host call that issued it.

    A kernel named SendRecv may be any of all_to_all, send and recv: there the host knows better.
    Also says whether there are kernels and calls that launch calls, not yet read, might join.
    """
    calls = host_calls(trace)
    by_id = by_external_id(kernels, calls)
    bare = kernels.filter(pl.col("elements_in").is_null()).join(by_id, on="event", how="anti")
    spare = calls.filter(pl.col("elements_in") > 0).join(by_id, on="call", how="anti")
    launches = trace.events.filter(pl.col("kind").is_in(LAUNCH_KINDS))
    wants_launches = launches.is_empty() and bare.height > 0 and spare.height > 0
    links = by_id
    if launches.height:
        links = pl.concat([by_id, by_correlation(kernels, calls, launches)])
    told = links.unique("event", keep="first", maintain_order=True).join(
        calls.select("call", "collective", *_TOLD, issued="ts"), on="call"
    )
    filled = kernels.join(told, on="event", how="left", suffix="_host", maintain_order="left")
    vague = pl.col("collective").is_null() | (pl.col("collective") == "send_recv")
    better = pl.coalesce("collective_host", "collective")
    filled = filled.with_columns(
        collective=pl.when(vague).then(better).otherwise("collective"),
        **{name: pl.coalesce(name, f"{name}_host") for name in _TOLD},
    ).select(*kernels.columns, "issued")
    return filled, wants_launches


# --- sizes -----------------------------------------------------------------------------------


def _message_bytes(rows: pl.DataFrame) -> pl.Expr:
    """Bytes of the full message: what comes out of an all_gather, what goes in otherwise."""
    gathers = pl.col("collective") == "all_gather"
    whole = pl.coalesce("elements_out", pl.col("elements_in") * pl.col("group_size"))
    elements = pl.when(gathers).then(whole).otherwise("elements_in")
    return elements * mapped(rows["dtype"], dtype_bytes, pl.Int64)


def _plain_dtype(dtype: str) -> str:
    """One spelling: ``c10::BFloat16``, ``BFloat16`` -> ``bfloat16``."""
    return dtype.removeprefix("c10::").lower()
