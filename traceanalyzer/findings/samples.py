"""Rule for lines of code with many samples, and waits in place of them."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common import libraries
from traceanalyzer.analyzers.common.columns import largest_first, left_join
from traceanalyzer.analyzers.common.own_lines import (
    BACKGROUND,
    BLOCKS,
    COMPILES,
    IDLE,
    LOADER,
    RUNS,
    RUNS_OTHER,
    place_of,
)
from traceanalyzer.analyzers.common.waits import (
    ADVICE,
    DEVICE,
    EVENTS,
    FILE_LOCK,
    FULL_QUEUE,
    PROCESS,
    QUEUE,
    RANKS,
    REQUESTS,
    may_be_for_requests,
    wait_of,
)
from traceanalyzer.analyzers.py_spy_report.result import LIBRARY, MAIN, PATH, LeafPaths, by_line
from traceanalyzer.findings.rule import ADVICE as TEXTS, Answers, Measured, Rule, rule
from traceanalyzer.units import (
    format_frac,
    format_ranges,
    format_weight,
)

_TEXTS = TEXTS["work"]
#: Most places and lines that are named.
_NAMED = 3


@rule(
    "py_spy_report",
    "one line of your own code, or data loading in the main process, with many samples",
    "share of samples in or below the line, or in data loading",
    {"info": 0.1},
)
def _hot_line(result: LeafPaths, _: Answers) -> Iterator[Measured]:
    if not result.total_samples:
        return
    paths = _with_saves(result)
    counted = paths.filter(pl.col("doing").is_null() | (pl.col("doing") == FILE_LOCK))
    yield from _loading(result)
    is_whole = result.busy_samples == result.total_samples
    of = "samples" if is_whole else "samples of main threads and running code"
    of = "allocated memory" if result.unit == "bytes" else of
    loading, is_alone = result.loader_wait_frac, (result.processes["role"] == MAIN).all()
    before = (
        f"The main process waits for the data loader in {format_frac(loading)} of its samples: "
    ) * (loading >= _WAITS and not is_alone)
    yield from _waiting(result) if is_alone and loading else ()
    rest_rows = counted
    called = pl.format("{}: {} < {}", _LEAF_FILE, "name", pl.col("caller").fill_null(""))
    for pattern, what, advice in _KINDS:
        is_kind = called.str.contains(pattern)
        yield from _summed(counted.filter(is_kind), result.busy_samples, of, what, advice)
        rest_rows = rest_rows.filter(~is_kind)
    yield from _lock_waits(result)
    yield from _main_waits(result, paths.filter("saves"))
    yield from _activities(result)
    yield from _in_libraries(result, rest_rows, before)
    yield from _in_background(result)
    yield from _checkpoints(result, paths.filter("saves"))
    leaf = pl.format("{}: {}", _LEAF_FILE, "name")
    trains = leaf.str.contains(_BACKWARD).any()  # of lines with models, the rest counts
    in_model = _LEAF_FILE.str.ends_with(".py") & leaf.str.contains(_IN_MODEL)
    rest_rows = rest_rows.filter(~pl.col("saves"), ~(trains.over(LIBRARY) & in_model))
    first = _IN_MODEL if counted.select(trains).item() else _BACKWARD
    if _share_of(result, FULL_QUEUE) < _MOST:  # else the host is ahead of the GPU
        yield from _hot_lines(result, rest_rows, (of, before, first))


def _share_of(result: LeafPaths, activity: str) -> float:
    """Return the share of an activity in all but idle and background threads."""
    acts = _active(result)
    samples = float(acts.filter(activity=activity)["samples"].sum())
    return samples / (float(acts["samples"].sum()) or 1)


def _active(result: LeafPaths) -> pl.DataFrame:
    return result.activities.filter(~pl.col("activity").is_in([IDLE, BACKGROUND]))


def main_wait(result: LeafPaths) -> str:
    """Return the sentence on the wait that most samples are, with what to do; empty without it."""
    acts = _active(result)
    rows = acts.filter(pl.col("activity").is_in(_NO_FINDING))
    for row in rows.head(1).iter_rows(named=True):
        if (share := row["samples"] / float(acts["samples"].sum())) >= _MOST:
            place = f", most of it at {row['place']}" if row["place"] else ""
            advice = ADVICE[row["activity"]]
            return f"{format_frac(share)} of samples: {row['activity']}{place}. {advice}."
    return ""


def _hot_lines(
    result: LeafPaths, rows: pl.DataFrame, texts: tuple[str, str, str]
) -> Iterator[Measured]:
    """Yield the lines of own code, but those of models.

    Args:
        result: the report.
        rows: the rows of ``paths`` that count.
        texts: what it is a share of, what comes before the first line, and what that does not call.
    """
    of, before, first = texts
    whole = result.busy_samples
    loaded = {tuple(of): n for *of, n in result.loading[["name", "path", "line", "samples"]].rows()}
    fewest = _FEWEST * (result.unit == "samples")
    lines = _neighbours(by_line(rows).filter(pl.col("samples") >= fewest)).head(_MOST_LINES)
    for number, row in enumerate(lines.iter_rows(named=True)):
        called = "{path}: {name}: {}".format(row[LIBRARY[0]], **row)
        if re.search(_IN_FRAMEWORK if number else first, called):
            continue  # what the program is for
        name, path, line, samples = (row[key] for key in (*LIBRARY, "samples"))
        if 2 * sum(loaded.get((name, path, one), 0) for one in row["lines"]) >= samples:
            continue  # part of the time to load batches
        what, place = ("function", path) if line is None else ("line", f"{path}:{line}")
        if (n := len(row["lines"])) > 1:
            what = f"{n} neighbouring lines"
            place = f"{path}:{format_ranges(row['lines'])}, most in line {line}"
        yield Measured(
            size=samples / whole,
            title=f"{'' if number else before}{format_frac(samples / whole)} of {of} "
            f"{'is' if 'memory' in of else 'are'} in or below {'one ' * (n == 1)}{what} of your "
            f"own code: {name}{f' ({place})' if place else ''}.",
            evidence=tuple(_counted(result, samples, what)),
            advice=_below(result, row),
            of=of,
            confidence="low" if whole < _FEW.get(result.unit, 0) else "high",
        )


def _counted(result: LeafPaths, samples: float, what: str) -> Iterator[str]:
    """Yield how much is in or below a line, of how much, and what is not counted."""
    rest, waits = result.total_samples - result.busy_samples, _share_of(result, DEVICE)
    part, busy, idle = (format_weight(n, result.unit) for n in (samples, result.busy_samples, rest))
    yield f"{part} in or below the {what}, {busy} of main threads and running code."
    running = result.activities.filter(pl.col("activity").is_in([RUNS, RUNS_OTHER]))
    runs = float(running["samples"].sum())
    if samples < runs < result.busy_samples:
        yield f"{format_frac(samples / runs)} of the samples that run code, as in py-spy-report."
    if rest > 0:
        yield f"Not counted: {idle} of idle threads, background threads and waits for them."
    if waits >= _WAITS:
        yield (
            f"The GPU is waited for in {format_frac(waits)}: code that runs while the GPU works "
            "costs nothing (torch.profiler shows it)."
        )


def _neighbours(lines: pl.DataFrame) -> pl.DataFrame:
    """Join neighbouring lines of a function: their numbers are ``lines``."""
    name, path, line = LIBRARY
    rows = lines.sort(name, path, line, nulls_last=True)
    apart = pl.col(line).diff().over(name, path).fill_null(_NEXT + 1) > _NEXT
    rows = rows.with_columns(run=apart.cum_sum()).sort("samples", descending=True)
    first, same = (pl.col("name", "path", line).first(), pl.struct("name", "path"))
    below = pl.col("below").filter(same == same.first()).sum()
    runs = rows.group_by(name, path, "run", maintain_order=True).agg(
        first, below, pl.col("samples").sum(), lines=pl.col(line).sort()
    )
    return largest_first(runs.drop("run"), "samples", *LIBRARY)


#: Calls that save checkpoints, and files of progress bars.
_SAVES = (
    r"(?:async_|_)?save\w* \((?:.*/)?(?:torch/serialization|safetensors|flax/training)"
    r"|\((?:.*/)?(?:torch/distributed|orbax)/checkpoint/"
)
#: Kinds of samples that are summed: pattern of file, name and caller, what they do, and advice.
#: Python's profiler and Austin have a frame for collections of garbage.
_KINDS = (
    (
        (
            r"^(?:.*[/\\])?(?:(?:tqdm|alive_progress|progressbar2?|enlighten)[/\\]"
            r"|rich[/\\](?:progress|.* < .*\(.*[/\\]progress))"
        ),
        "update a progress bar ({})",
        _TEXTS["bars"],
    ),
    (r": (?:<GC>|:GC:) <", "collect garbage (Python's gc)", _TEXTS["garbage"]),
)
#: Fewer samples of a line are chance, and fewer samples (or less time) of a file say little.
_FEWEST, _FEW = 3, {"samples": 100, "ns": 10_000_000}
#: Lines of a function that are so near are neighbours.
_NEXT = 2


def _loading(result: LeafPaths) -> Iterator[Measured]:
    """Yield the samples in which the main thread loads batches, with the line that takes most."""
    if share := result.loading_samples / result.total_samples:
        place, calls = result.loading.select("place", pl.col("calls").fill_null("")).row(0)
        most = f", most of it in {': '.join(filter(None, (place, calls)))}" if place else ""
        rows = result.loading.drop_nulls("place").head(_NAMED).select("place", "samples")
        each = [f"{name} {format_frac(n / result.total_samples)}" for name, n in rows.iter_rows()]
        once = " Or tokenize the data set once, before the training." * ("token" in calls.lower())
        yield Measured(
            size=share,
            title=f"The main thread loads batches itself in {format_frac(share)} of all samples "
            f"(DataLoader with num_workers=0){most}.",
            evidence=(f"Lines: {', '.join(each)}.",) if len(each) > 1 else (),
            advice=f"Load them in workers while the GPU works: DataLoader(num_workers=4).{once}",
            of="samples",
        )


def _waiting(result: LeafPaths) -> Iterator[Measured]:
    """Yield the samples in which the main thread waits for workers, which were not recorded."""
    waits = result.activities.row(by_predicate=pl.col("activity") == LOADER, named=True)
    in_background = result.paths.filter(pl.col("doing") == BACKGROUND)
    pins = in_background.filter(pl.col("path").str.contains(_PIN_THREAD))["samples"].sum()
    yield Measured(
        size=result.loader_wait_frac,
        title=f"The main thread waits for the data loader in {format_frac(result.loader_wait_frac)}"
        f" of its samples{f', at {place}' if (place := waits['place']) else ''}.",
        advice=_TEXTS["pins"] if 2 * pins > waits["samples"] else _TEXTS["slow_workers"],
        of="samples of the main thread",
    )


#: The thread of PyTorch's DataLoader that pins memory.
_PIN_THREAD = r"_utils[/\\]pin_memory\.py$"


def _summed(
    rows: pl.DataFrame, running: float, of: str, what: str, advice: str
) -> Iterator[Measured]:
    """Yield the samples of one kind, such as progress bars, summed over the lines above them."""
    if share := float(rows["samples"].sum()) / running if running else 0.0:
        callers = rows.group_by(place=pl.coalesce("caller", LIBRARY[0])).agg(
            pl.col("samples").sum()
        )
        places = largest_first(callers.drop_nulls(), "samples", "place").head(_NAMED)["place"]
        packages = sorted(
            {libraries.package_of(path) or path for path in rows["path"].drop_nulls()}
        )
        yield Measured(
            size=share,
            title=f"{format_frac(share)} of {of} {what.format(', '.join(packages))}.",
            evidence=tuple(f"Called by {place}." for place in places),
            advice=advice,
            of=of,
        )


def _with_saves(result: LeafPaths) -> pl.DataFrame:
    """Return the paths, and whether their leaf (if it runs) or their line mostly ``saves``."""
    calls = pl.col("calls").str.contains(_SAVES)
    named = [pl.col(one).alias(two) for one, two in zip(PATH, LIBRARY, strict=True)]
    lines = result.lines.filter(calls).select(*named, of_line=True).unique()
    rows = left_join(result.paths, lines, LIBRARY)
    leaf = pl.format("{} ({}", "name", pl.col("path").fill_null("")).str.contains(_SAVES)
    return rows.with_columns(
        saves=(leaf & pl.col("doing").is_null()) | pl.col("of_line").is_not_null()
    )


def _checkpoints(result: LeafPaths, rows: pl.DataFrame) -> Iterator[Measured]:
    """Yield the samples that save checkpoints, with their waits for earlier saves."""
    waits = float(rows.filter(pl.col("doing").is_not_null())["samples"].sum())
    if share := float(rows["samples"].sum()) / (float(_active(result)["samples"].sum()) or 1):
        lines = by_line(rows)[LIBRARY].head(_NAMED)
        places = [f"{name} ({path}:{line})" for name, path, line in lines.iter_rows()]
        yield Measured(
            size=share,
            title=f"{format_frac(share)} of samples without idle threads save checkpoints: "
            f"{', '.join(places)}.",
            evidence=(
                *[f"{format_weight(waits, result.unit)} of it wait, such as for the save before."]
                * (waits > 0),
            ),
            advice=_TEXTS["checkpoints"],
            of="samples",
        )


def _activities(result: LeafPaths) -> Iterator[Measured]:
    """Yield the samples that compile code at run time, or wait for ranks, with the main line."""
    for activity, (text, advice) in _ACTIVITIES.items():
        for row in result.activities.filter(activity=activity).iter_rows(named=True):
            share = row["samples"] / result.total_samples
            yield Measured(
                size=share,
                title=f"{format_frac(share)} of samples {text}"
                f"{f', most of it at {place}' if (place := row['place']) else ''}.",
                advice=advice,
                of="samples",
                confidence="medium",
            )


#: What samples do that have a finding: phrase and advice.
_ACTIVITIES = {
    COMPILES: ("compile code", _TEXTS["compiles"]),
    BLOCKS: ("block the event loop of asyncio, which serves nothing meanwhile", _TEXTS["blocks"]),
    RANKS: ("wait for other ranks", f"{ADVICE[RANKS]}."),
}


def _in_libraries(result: LeafPaths, rows: pl.DataFrame, before: str) -> Iterator[Measured]:
    """Yield the functions of libraries in which code runs without own code, by their advice.

    All of them count if the main process waits for the workers of its loader (``before``).
    """
    alone = rows.filter(pl.col(LIBRARY[0]).is_null(), pl.col("doing").is_null())
    called = pl.format("{}: {}", _LEAF_FILE, "name")
    serves = called.str.contains(_SERVES) & ~called.str.contains(f"{_IN_FRAMEWORK}|: forward")
    by = (
        alone.filter(serves | pl.lit(bool(before)))
        .sort("samples", descending=True)
        .group_by("name", "path", text=called)
    )
    share = pl.col("samples").sum() / result.total_samples
    sums = by.agg(pl.col("line").mode().min(), pl.col("caller").first(), share=share)
    sums = sums.with_columns(place=place_of(*map(pl.col, PATH)))
    many = largest_first(sums.filter(pl.col("share") >= _MANY), "share", "name", "path")
    texts = [
        next(a for one, a in _OF_LIBRARIES.items() if re.search(one, of)) for of in many["text"]
    ]
    for (advice,), each in many.group_by(pl.Series("advice", texts), maintain_order=True):
        places = [
            ", called by ".join(filter(None, (row["place"], row["caller"])))
            + f", {format_frac(row['share'])}"
            for row in each.head(_NAMED).iter_rows(named=True)
        ]
        yield Measured(
            size=float(each["share"].sum()),
            title=f"{before}{'cC'[not before]}ode of libraries runs in many samples: "
            f"{'; '.join(places)}.",
            advice=_TEXTS["in_workers"] if before and advice == _OF_LIBRARIES[""] else str(advice),
            of="samples",
            confidence="medium",
        )


def _in_background(result: LeafPaths) -> Iterator[Measured]:
    """Yield the functions of libraries that run Python code in threads beside own code."""
    runs = _LEAF_FILE.str.ends_with(".py") & ~_LEAF_FILE.str.contains(_RELEASES)
    rows = result.paths.filter(pl.col("doing") == BACKGROUND, runs)
    by = rows.group_by("name", "path", "line", by=pl.coalesce("caller", "path"))
    sums = by.agg(pl.col("samples").sum())
    share = float(sums["samples"].sum()) / result.total_samples
    sums = largest_first(sums.with_columns(place=place_of(*map(pl.col, PATH))), "samples", "place")
    for row in sums.head(1).iter_rows(named=True):
        caller = f", called by {row['by']}" if row["by"] != row["path"] else ""
        yield Measured(
            size=share,
            title=f"Threads of libraries run Python code in {format_frac(share)} of samples, most "
            f"of it in {row['place']}{caller}.",
            advice=_TEXTS["background"],
            of="samples",
            confidence="low",
        )


def _lock_waits(result: LeafPaths) -> Iterator[Measured]:
    """Yield the lines in which threads wait for a lock, and who holds it."""
    for place, holder, samples in result.locks.iter_rows():
        share = samples / result.total_samples
        yield Measured(
            size=share,
            title=f"Threads wait for a lock in {place}: {format_frac(share)} of samples.",
            evidence=(f"Meanwhile one thread at a time is in {holder}.",),
            advice=_TEXTS["lock"],
            of="samples",
            confidence="medium",
        )


def _main_waits(result: LeafPaths, saves: pl.DataFrame) -> Iterator[Measured]:
    """Yield what the main thread waits for, other than servers for requests.

    Args:
        result: the report.
        saves: the rows of ``paths`` that have another finding, with their waits.
    """
    named = {*saves.select(place_of(*map(pl.col, LIBRARY))).to_series(), *result.locks["place"]}
    rows = result.waits.filter(~pl.col("place").is_in(named))
    for (wait,), each in rows.group_by("activity", maintain_order=True):
        place, calls, most = each.select("place", "calls", "frac").row(0)
        share = float(each["frac"].sum())
        if wait != QUEUE and may_be_for_requests(wait, f"{place} {calls}"):
            continue
        part = "most of it" if 2 * most >= share else "the largest part"
        other = wait == PROCESS and share >= _MOST  # the recorded process only waits
        yield Measured(
            size=share,
            title=f"The main thread {wait} in {format_frac(share)} of its samples, {part} in "
            f"{place}{f', {calls}' if calls else ''}.",
            advice=_TEXTS["other_process"] if other else f"{ADVICE[wait]}.",
            of="samples of the main thread",
            confidence="medium",
        )


#: Files whose functions mostly run C code meanwhile, without the interpreter lock.
_RELEASES = (
    r"(?:^|[/\\])(?:torch|numpy|jax|jaxlib|tensorflow|cupy)[/\\]"
    r"|(?:^|[/\\])(?:socket|ssl|gzip|bz2|lzma|zipfile|shutil|subprocess|hashlib)\.py$"
)
#: Waits without a finding of their own, and the least share of one that is named instead.
_NO_FINDING, _MOST = (DEVICE, FULL_QUEUE, EVENTS, REQUESTS), 0.5
#: So many lines may have the least share of a finding.
_MOST_LINES = 10
#: Functions of frameworks, models and their steps: file and name, then the function of own code.
_LEAF_FILE = pl.col("path").fill_null("")
_BACKWARD = r"run_backward|(?:^|/)torch/autograd/(?:graph|__init__)\.py: "
_IN_MODEL = (
    rf"{_BACKWARD}|^(?:.*/)?(?:torch|jax|tensorflow|keras|diffusers|deepspeed|megatron)/"
    r"|(?:^|/)transformers/(?:model|trainer|generation|pipelines|integrations|activations)"
    r"|/(?:model_executor|worker|models|layers|attention)/"
    r"|^(?:.*/)?lib(?:torch|c10)|: (?:\w+\.)*_?forward(?:$|: )"
)
_IN_FRAMEWORK = rf"{_IN_MODEL}|: (?:\w+\.)*(?:backward|__call__|step)(?:$|: )"


#: Least share of a function of a library.
_MANY = 0.1
#: Advice by functions of libraries, and libraries that serve models or do what models need.
_OF_LIBRARIES = TEXTS["in_libraries"]
_SERVES = (
    r"^(?:.*[/\\])?(?:xgrammar|outlines|outlines_core|llguidance|lmformatenforcer|vllm|sglang|lmdeploy"
    r"|tensorrt_llm|uvicorn|starlette|fastapi|pydantic|orjson|tokenizers|tiktoken|sentencepiece"
    r"|transformers[/\\]tokenization\w*|PIL|cv2|datasets|pandas|librosa|av|decord|lightning"
    r"|pytorch_lightning|wandb|matplotlib|tensorboardX?|mlflow)[/\\.]"
)
#: Least share of the main process that is a wait for the loader.
_WAITS = 0.1
#: Files of functions that are not Python.
_NATIVE = r"\.(?:so[.\d]*|cpp|cc|cu|c|h)$"
#: Names of functions that wait, probably in a call of C, which has no frame.
_NAMED_WAIT = r"(?i)(?:^|[._])(?:wait|sleep|poll)"
#: Functions and files of data sets.
_PREPARES = r"(?i)collate|__getitem__|data[_-]?set"


#: Advice by what is below a line, ``file: function``: environments of reinforcement learning,
#: threads of OpenMP that spin, starts of processes, and writes.
_BELOW = TEXTS["below_lines"]


def _below(result: LeafPaths, row: Mapping[str, Any]) -> str:
    """Return advice for a row of :func:`by_line`: by the function below it."""
    leaf, file, name = row["name"], row["path"] or "", row[LIBRARY[0]]
    called = f"{leaf} ({file})" if file else leaf
    share = format_frac(row["below"] / row["samples"])
    if wait := wait_of(leaf, file or None):
        return f"It {wait} in {called}. {ADVICE[wait]}."
    workers = result.processes["role"].str.contains("worker").any()
    if re.search(_PREPARES, f"{name} {row[LIBRARY[1]]}") and workers:
        return f"{share} of it is in {called}. {_TEXTS['in_workers']}"
    if re.search(_PREPARES, f"{name} {row[LIBRARY[1]]}"):
        arrays = f" {_TEXTS['arrays']}" * file.startswith("pandas")
        call = "call it in loader workers (num_workers=4)."
        return f"{name} runs in the main process: {call}{arrays}"
    for pattern, text in _BELOW.items():
        if re.search(pattern, f"{file}: {leaf}"):
            return f"{share} of it is in {called}. {text}"
    if row[LIBRARY[1]] is None and not file and result.paths["path"].count() == 0:
        inside = "" if leaf == name else f"{share} of it is in {called}. "
        return f"{inside}{_TEXTS['native']}"
    if leaf == name:
        part = "It" if row["below"] == row["samples"] else f"{share} of it"
        if re.search(_NAMED_WAIT, name):
            return f"{part} is in {name}, a wait by its name: make faster what it waits for."
        text = (
            f"{part} is in {name} itself: use NumPy or tensor operators instead of a loop, or call "
            "it less often."
        )
        native = result.paths["path"].str.contains(_NATIVE).any()
        if result.unit == "bytes":
            return (
                f"{part} is allocated in {name} itself: allocate once and reuse it, or keep less."
            )
        return text if native else f"{text} {_TEXTS['maybe_native']}"
    return f"{share} of it is in {called}: call it less often, or with less data."


RULES: tuple[Rule, ...] = (_hot_line,)
