"""Operators in plain words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.analyzers.gpu_idle.causes import OPERATOR
from traceanalyzer.analyzers.operators.question import CALLS, FRAMES
from traceanalyzer.analyzers.operators.tree import ANY_STEP
from traceanalyzer.units import format_bytes, format_frac, format_ns

if TYPE_CHECKING:
    from traceanalyzer.analyzers.operators.result import Operators

_NAMED = 3

#: How PyTorch calls the wait for a data loader or pipe.
LOADER = re.compile(r"enumerate\(Data\w+\)#")


def verdict(result: Operators) -> str:
    """Where the device's and the host's time went, and what that says."""
    said = []
    if result.device_ns:
        said.append(_launched(result, result.device_ns))
    host_ns = int(result.running["self_host_ns"].sum())
    threads = "" if host_ns == result.host_ns else " that run operators"
    heaviest = _heaviest(result.running, "self_host_ns", host_ns)
    longest = f", by self time longest in {heaviest}" if heaviest else ""
    said.append(
        f"The host's threads{threads} were in calls for {format_ns(host_ns)} in sum{longest}."
    )
    return " ".join([*said, *_meaning(result)])


def _launched(result: Operators, device_ns: int) -> str:
    ordered = result.operators.sort("self_device_ns", "name", descending=[True, False])
    heaviest = _heaviest(ordered, "self_device_ns", device_ns)
    told = (
        f"most was launched by {heaviest}"
        if heaviest
        else "none was launched by a recorded operator"
    )
    return f"Of {format_ns(device_ns)} of device work {told}."


def _heaviest(rows: pl.DataFrame, column: str, whole: int) -> str:
    told = rows.filter(pl.col(column) > 0).head(_NAMED)
    parts = [
        f"{name} ({format_ns(value)}, {format_frac(value / whole)})"
        for name, value in told.select("name", column).iter_rows()
    ]
    return ", ".join(parts)


def _meaning(result: Operators) -> Iterator[str]:
    """What self time of the heaviest call is, where that is not plain."""
    row = result.running.row(0, named=True)
    name = row["name"]
    if LOADER.match(name):
        costs = "; traceanalyzer gpu-idle says what it costs" * _idleness_known(result)
        yield f"That is the wait for the next batch{costs}."
    elif row["kind"] in ("user_annotation", "nvtx") or name == ANY_STEP:
        yield (
            f"Self time of {name} is other code, or waiting, that no operator accounts for; "
            f"{result.code_hint} shows which."
        )
    elif row["kind"] in CALLS and "ynchronize" in name:
        yield f"{name} is the host waiting for the device, not work of its own."


def _idleness_known(result: Operators) -> bool:
    """Whether gpu-idle has work to judge by: a device's, or else operators of the host."""
    calls = result.operators.filter(pl.col("kind") == "cpu_op")["name"]
    return result.device_ns is not None or calls.str.contains(OPERATOR).any()


def notes(result: Operators) -> tuple[str, ...]:
    """What was not counted, and how shares are meant."""
    counted = (
        "Self is without the calls made in it, total with them. Shares of host time are of all "
        "threads' self times together; a call within a call of its own name counts twice in total."
    )
    if (result.operators["kind"] == "cpu_op").any():
        counted += (
            " An operator (cpu_op) that is the only call in a call of its own name is one with it."
        )
    said = [counted]
    idle_ns = result.host_ns - int(result.running["self_host_ns"].sum())
    if idle_ns:
        said.append(
            f"{format_ns(idle_ns)} of host time is of threads that run no operators: they wait, or "
            "talk to the network."
        )
    if result.device_ns and result.unlaunched_ns:
        share = format_frac(result.unlaunched_ns / result.device_ns)
        said.append(
            f"{format_ns(result.unlaunched_ns)} ({share}) of device work is in no row: its launch "
            "was not recorded, or lies outside of every operator."
        )
    if result.outside_bytes:
        done = "allocated" if result.outside_bytes > 0 else "freed"
        said.append(
            f"{format_bytes(abs(result.outside_bytes))} were {done} outside of every call, and are "
            "in no row."
        )
    if result.unclosed:
        said.append(f"{result.unclosed} operators never end and are not counted.")
    if result.question.by_stack:
        alone = result.operators["stack"].is_null() & (result.operators["kind"] != FRAMES)
        if alone.any():
            said.append(
                "Operators of the backward pass run in a thread without Python frames; their rows "
                "have no stack."
            )
    return tuple(said)
