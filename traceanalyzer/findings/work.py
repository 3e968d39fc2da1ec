"""Rules for what each step runs and keeps, memory, the host, and the input files."""

from collections.abc import Iterator

import polars as pl

from traceanalyzer.analyzers.common.names import called_in, frame_text
from traceanalyzer.analyzers.common.soundness import ALLOCATES_ON_GPU
from traceanalyzer.analyzers.info.compute import Info
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.findings import memory, samples, straggling
from traceanalyzer.findings.rule import ADVICE as TEXTS, Answers, Measured, Rule, rule
from traceanalyzer.findings.steps import RULES as OF_STEPS, uneven_steps
from traceanalyzer.units import (
    format_bytes,
    format_count,
    format_first,
    format_frac,
    format_ns,
    format_ranges,
)
from traceanalyzer.vocabulary import (
    DATABASES,
    FAILED_CALLS,
    MEMORY_SNAPSHOT,
    NO_GPU_WORK,
    PRINTED_TEXT,
)

_TEXTS = TEXTS["work"]
#: Most ranks that are named.
_NAMED = 3


@rule(
    "steps",
    "matrix products of the CPU in double precision in a program that has others, too",
    "half of their time, which single precision saves, as a share of the time of all steps",
    {"info": 0.03, "warning": 0.1, "critical": 0.3},
)
def _double_products(result: Steps, _: Answers) -> Iterator[Measured]:
    rows = pl.DataFrame() if result.doubles is None else result.doubles
    for row in rows.iter_rows(named=True):
        place = f" in {frame_text(row['code'])}" if row["code"] else ""
        share = row["ns"] / row["steps_ns"]
        yield Measured(
            size=share / 2,
            title=f"{row['name']}{place} computes in double precision (float64): "
            f"{format_count(row['n'], 'matrix product')}, {format_frac(share)} of step time.",
            evidence=(
                f"{row['others']:,} others in lower precision take {format_ns(row['others_ns'])}.",
            ),
            advice=_TEXTS["double"],
            cost_ns=round(row["ns"] / 2 / row["steps"]),
            of="step time",
            per="step",
            rank=row["rank"],
            confidence="medium",
        )


@rule(
    "steps",
    "a process without a GPU whose threads seem to lack CPUs: in every step many operators take "
    "far longer than the same calls in another step",
    "time above that of the same calls in the step in which each is fastest, as a share of the "
    "time of all steps",
    {"info": 0.1, "warning": 0.3},
)
def _contended_cpus(result: Steps, answers: Answers) -> Iterator[Measured]:
    rows = pl.DataFrame() if result.contended is None else result.contended
    if rows.is_empty():
        return
    row = rows.sort(pl.col("least_ns") / pl.col("fast_ns"), "rank").row(-1, named=True)
    more, steps = row["ns"] - row["steps"] * row["fast_ns"], row["steps"]
    # operators of several threads run at the same time, in a part of the step
    busy = answers.time.frac(answers.time.busy_ns) if answers.time.in_steps else 1.0
    share = min(more / row["steps_ns"], (1 - row["fast_ns"] / row["least_ns"]) * busy)
    several = f"{rows.height} processes" if rows.height > 1 else "this process"
    least = rows.select((pl.col("least_ns") / pl.col("fast_ns")).min()).item()
    yield Measured(
        size=share,
        title=f"The threads of {several} seem to lack CPUs: in each step operators take at least "
        f"{least:.1f} times as long as the same calls at their fastest "
        f"({'up to ' * (rows.height > 1)}{format_frac(share)} of step time).",
        evidence=(
            "Long calls lie beside short ones; larger inputs would make both longer.",
            "Waits of threads for a CPU are not recorded.",
        ),
        advice=_TEXTS["contended"],
        cost_ns=round(share * row["steps_ns"] / steps),
        of="step time",
        per="step",
        rank=row["rank"] if rows.height == 1 else None,
        confidence="medium",
    )


@rule(
    "steps",
    "operators or kernels of which each step runs more, and host memory that each step keeps",
    "self time of the calls beyond as many as in the first step, as a share of the time of all "
    "steps, or of the last one if this is more; growth of memory as a share of it",
    {"info": 0.02, "warning": 0.1},
)
def _growing_calls(result: Steps, _: Answers) -> Iterator[Measured]:
    rows = pl.DataFrame() if result.growing is None else result.growing
    for row in rows.iter_rows(named=True):
        # calls of several threads run at the same time
        mean = min(row["more_ns"] / row["steps_ns"], 1.0)
        last = min(row["last_ns"] / row["last_step_ns"], 1.0)
        yield Measured(
            size=max(mean, last),
            title=f"Each step runs more calls of {row['outer'] or row['name']}{called_in(row)}, "
            f"from {row['first']:,} to {row['last']:,}: {format_ns(row['last_ns'])} more in the "
            f"last step ({format_frac(last)}) than in the first.",
            advice=_TEXTS["grows"],
            cost_ns=round(row["more_ns"] / row["steps"]),
            cost_frac=mean,
            of="step time",
            per="step",
            rank=row["rank"],
            confidence="high",
        )
    rows = pl.DataFrame() if result.host_memory is None else result.host_memory
    for row in rows.iter_rows(named=True):
        more = row["last_bytes"] - row["first_bytes"]
        each = format_bytes(more / (row["steps"] - 1))
        within = f" in {row['outer']}" if row["outer"] else ""
        yield Measured(
            size=more / row["last_bytes"],
            title=f"Each step keeps {each} of host memory that it allocates{within}"
            f"{called_in(row)}: {format_bytes(more)} in {row['steps'] - 1} steps.",
            advice=_TEXTS["keeps"],
            cost_bytes=more,
            of="the memory at the end",
            rank=row["rank"],
            confidence="high",
        )


# --- the files -------------------------------------------------------------------------------

_LOSSES = ("error", "data_loss")


@rule(
    "info",
    "dropped events: a file is truncated or damaged",
    "files with dropped events",
    {"warning": 1},
    counts=True,
)
def _dropped_events(result: Info, _: Answers) -> Iterator[Measured]:
    lost = result.issues.filter(pl.col("severity").is_in(_LOSSES), pl.col("code") != NO_GPU_WORK)
    files = lost["path"].n_unique()
    if not files:
        return
    of_damaged = (pl.col("code") == _DAMAGED).any().over("path")  # its text is truncated, too
    lost = lost.filter(~(of_damaged & (pl.col("code") == "truncated")))
    first, codes = lost.row(0, named=True), ", ".join(sorted(lost["code"].unique()))
    kind = "" if first["code"] == _DAMAGED else f"{first['code']}, first at "
    place = f"{kind}{first['first']}" if first["first"] else first["code"]
    yield Measured(
        size=files,
        title=f"{_files(files, result)} dropped events: {codes}.",
        evidence=(f"{first['path']}: {place}.",),
        advice=f"{_complete(result, lost)} All numbers are without these events.",
    )


def _files(some: int, result: Info) -> str:
    count = result.files["path"].n_unique()
    each = "The file" if count == 1 else f"{some:,} of {count:,} files"
    return f"{each} {'has' if some == 1 else 'have'}"


#: Code of a compressed file that ends early or is damaged: it may be an incomplete copy.
_DAMAGED = "damaged-file"
_STOP = "Stop the profiler before the job ends, so that it can write the complete file."
#: Codes of files that end early or are damaged, and of tables that are missing or differ.
_INCOMPLETE = r"truncated|damaged|unreadable-rows|incomplete-row"
_OTHER_TABLES = r"missing-(?:table|column)"


def _complete(result: Info, lost: pl.DataFrame) -> str:
    """Return how to get a complete file, or what to do about the values that are dropped."""
    lost = lost.filter(pl.col("path") == lost["path"][0])
    if lost["code"].str.contains(_INCOMPLETE).any():
        formats = result.files.filter(pl.col("path") == lost["path"][0])["format"]
        if (formats == MEMORY_SNAPSHOT).any():
            return "Write the snapshot again: its _dump_snapshot() must end before the job."
        if (formats == PRINTED_TEXT).any():
            return "Print the table again, and copy all of it."
        if formats.is_in(DATABASES).any():
            return "Copy the file again, or export the recording again."
        is_packed = _DAMAGED in lost["code"]
        copied = "Copy the file again if its original is complete. " * is_packed
        return f"{copied}{_STOP}"
    if (lost["code"] == "history-overflowed").any():
        return "Keep more events (VizTracer: tracer_entries), or record for a shorter time."
    if lost["code"].str.contains(_OTHER_TABLES).any():
        return "Export the recording with another version of the profiler: its tables differ."
    return (
        "The file is complete, but the profiler wrote invalid values (traceanalyzer info counts "
        "them): check them, and update the profiler if there are many."
    )


@rule(
    "info",
    "a program that failed: calls return errors of the GPU",
    "files in which the program failed",
    {"critical": 1},
    counts=True,
)
def _failed_program(result: Info, _: Answers) -> Iterator[Measured]:
    failed = result.problems.filter(pl.col("code") == FAILED_CALLS)
    for row in failed.head(1).iter_rows(named=True):
        yield Measured(
            size=failed.height,
            title=row["text"],
            evidence=(f"{row['path']}: {format_count(row['count'], 'call')} returned an error.",),
            advice=f"{row['advice']} The time until the failure says little about a sound run.",
        )


@rule(
    "info",
    "GPU work missing although the profiler was to record it",
    "files without GPU work",
    {"warning": 1},
    counts=True,
)
def _gpu_not_traced(result: Info, answers: Answers) -> Iterator[Measured]:
    failed = result.issues.filter(pl.col("code") == NO_GPU_WORK, pl.col("severity").is_in(_LOSSES))
    if failed.is_empty():
        if answers.one_job:
            yield from _ranks_without_gpu_work(result)
        return
    first = failed.row(0, named=True)
    reason, _sep, remedy = first["first"].rpartition("; ")
    allocates = reason.startswith(ALLOCATES_ON_GPU)
    known = ALLOCATES_ON_GPU if allocates else "GPU tracing was on"
    yield Measured(
        size=failed.height,
        title=f"{_files(failed.height, result)} no GPU work although {known}.",
        evidence=(f"{first['path']}: {reason}.",),
        advice=f"{remedy[:1].upper()}{remedy[1:]}.",
        explained={"failed-program": 1.0},
    )


def _ranks_without_gpu_work(result: Info) -> Iterator[Measured]:
    """Yield ranks without GPU work if others of the same format have it."""
    files = result.files.select("path", "rank", "format", "world_size")
    rows = result.contents.join(files, on=["path", "rank"], how="left", nulls_equal=True)
    alike = ("format", "world_size")
    rows = rows.filter((pl.col("device_work") > 0).any().over(alike), pl.col("events") > 0)
    without = rows.filter(pl.col("device_work") == 0, pl.col("world_size") > 1)
    if without.is_empty():
        return
    ranks = without["rank"].drop_nulls().sort().to_list()
    who = f"rank{'' if len(ranks) == 1 else 's'} {format_first(ranks, _NAMED)}"
    yield Measured(
        size=without.height,
        title=f"No GPU work was recorded on {who if ranks else without['path'][0]}, although "
        "the other ranks have it.",
        evidence=(f"{without['path'][0]} has {without['launch_calls'][0]:,} launch calls.",),
        advice="Record it with ProfilerActivity.CUDA as on the other ranks. Another profiler that "
        "runs at the same time (nsys, DCGM) blocks CUPTI.",
        rank=ranks[0] if len(ranks) == 1 else None,
    )


@rule(
    "info",
    "missing files of some ranks",
    "number of missing ranks",
    {"info": 1},
    counts=True,
    compares_ranks=True,
    uses=("comm_outliers", "gpu_idle"),
)
def _missing_ranks(result: Info, answers: Answers) -> Iterator[Measured]:
    world = result.recordings["world_size"].max()
    ranks = result.recordings["rank"].drop_nulls().unique()
    if not isinstance(world, int) or ranks.is_empty() or ranks.len() >= world:
        return
    title = f"Files of {world - ranks.len():,} of {world:,} ranks are missing"
    waits, evidence = straggling.waited_for_missing(answers)
    if waits:
        absent = format_ranges([rank for rank in range(world) if rank not in ranks])
        title += f" ({absent}), and the others wait for one of them: {answers.time.share(waits)}"
    yield Measured(
        size=world - ranks.len(),
        title=f"{title}.",
        evidence=evidence,
        advice="Add the files of all ranks to separate wait time for stragglers from slow "
        "communication.",
        total_ns=waits or None,
        cost_frac=answers.time.frac(waits) if waits else None,
    )


RULES: tuple[Rule, ...] = (
    _contended_cpus, uneven_steps, _double_products, _growing_calls, *OF_STEPS, *samples.RULES,
    *memory.RULES, _dropped_events, _failed_program, _gpu_not_traced, _missing_ranks,
)  # fmt: skip
