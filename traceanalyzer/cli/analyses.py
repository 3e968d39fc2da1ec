"""Commands of analyses with options of their own.

``diff``; ``memory``, one command with four analyses; ``flamegraph`` and ``py-spy-report``.
"""

import math
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from traceanalyzer.analyzers import memory as of_memory
from traceanalyzer.analyzers.diff import Options as DiffOptions
from traceanalyzer.analyzers.flamegraph import Options as FlameGraphOptions
from traceanalyzer.analyzers.py_spy_report import Options as ReportOptions
from traceanalyzer.analyzers.registry import ENTRIES
from traceanalyzer.cli import output
from traceanalyzer.cli.answering import FAILED, LINE, analyze, answer, inputs_of
from traceanalyzer.cli.commands import analyzer_options
from traceanalyzer.cli.options import (
    ALL,
    ReadingOptions,
    Writing,
    plotting,
    reading,
    rows,
    writing,
    writing_pictures,
)
from traceanalyzer.errors import OptionError
from traceanalyzer.render import Form
from traceanalyzer.render.junit import Case, junit
from traceanalyzer.render.text import prose, visible


class _Percent(click.FloatRange):
    """A percentage, with or without the sign: ``5`` or ``5%``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number in percent."""
        number: Any = value.removesuffix("%").rstrip() if isinstance(value, str) else value
        percent = super().convert(number, param, ctx)
        if not math.isfinite(percent):
            self.fail(f"{value!r} is not a percentage", param, ctx)
        return percent


_PERCENT = _Percent(min=0)


@click.command("diff", help=DiffOptions.__doc__)
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@click.argument("others", metavar="[MORE...]", nargs=-1)
@click.option(
    "--bisect",
    is_flag=True,
    help="Several runs in order, such as versions: the first run in which each role changed.",
)
@click.option(
    "--fail-on-regression",
    type=_PERCENT,
    metavar="PCT",
    help=f"Exit with status {FAILED} if AFTER is significantly slower by more than PCT percent, "
    "with 1 if the runs cannot be compared. The result is written in any case.",
)
@click.option(
    "--min-change",
    type=_PERCENT,
    metavar="PCT",
    help="Ignore changes below PCT percent. Default: 2, or the value of --fail-on-regression if "
    "smaller.",
)
@click.option(
    "--more-before",
    metavar="PATH",
    multiple=True,
    help="A further run of BEFORE, so that the noise between runs is known. Repeatable.",
)
@click.option(
    "--more-after", metavar="PATH", multiple=True, help="A further run of AFTER. Repeatable."
)
@click.option(
    "--expected",
    metavar="FINDING",
    help="Also compare the gain that the diagnosis of BEFORE predicts with the measured one: the "
    "finding that was fixed, such as data-loading, or a saved diagnosis (diagnose -o found.json).",
)
@click.option(
    "--junit",
    "xml",
    metavar="FILE",
    help="Also write JUnit XML: a test that fails if --fail-on-regression applies.",
)
@analyzer_options(DiffOptions)
@plotting("steps of both runs and the largest changes")
@reading
@writing
def diff(
    before: str,
    after: str,
    others: tuple[str, ...],
    bisect: bool,
    fail_on_regression: float | None,
    min_change: float | None,
    more_before: tuple[str, ...],
    more_after: tuple[str, ...],
    expected: str | None,
    xml: str | None,
    reading: ReadingOptions,
    writing: Writing,
    **options: Any,
) -> None:
    """Compare two runs; exit with a failure status on a regression if requested."""
    import traceanalyzer as ta
    from traceanalyzer.run import baselines

    writing.check(junit=xml)
    least = min(2.0, fail_on_regression or 2.0) if min_change is None else min_change
    sides = [
        [
            inputs_of([path], quiet=reading.quiet)
            for one in (first, *more)
            for path in baselines.run_paths(one)
        ]
        for first, more in ((before, more_before), (after, more_after))
    ]
    runs = [*sides[0], *sides[1], *(inputs_of([path], quiet=reading.quiet) for path in others)]
    if others and not bisect:
        raise OptionError(
            "more than two runs: --bisect compares runs in order, --more-after adds one"
        )
    if bisect and (fail_on_regression is not None or xml or expected):
        raise OptionError("--bisect: without --fail-on-regression, --junit and --expected")

    if expected is not None and (len(runs) > 2 or any(options.values())):
        raise OptionError("--expected: only for two runs, without --step-name or --comm-pattern")

    def compare(*_: object, **how: Any) -> Any:
        if expected is not None:
            known: Any = {name: value for name, value in how.items() if name not in options}
            return ta.check_fix(runs[0], runs[1], expected, **known)
        if bisect:
            return ta.diff_series(runs, **how)
        if len(runs) > 2:
            return ta.diff_runs(*sides, **how)
        return ta.diff(*runs, **how)

    result = analyze(compare, *runs, reading=reading, min_change=least / 100, **options)
    writing.show(result)
    status = 0 if fail_on_regression is None else _diff_status(result, fail_on_regression)
    if xml is not None:
        failure = result.verdict if status else ""
        limit = "" if fail_on_regression is None else f" above {fail_on_regression:g} %"
        skipped = "" if limit else "no limit was given (--fail-on-regression PCT)"
        case = Case(f"no regression{limit}: {before} and {after}", failure, skipped)
        output.write(junit("traceanalyzer.diff", [case]), xml)
    click.get_current_context().exit(status)


def _diff_status(result: Any, percent: float) -> int:
    """Return the exit status if a regression above ``percent`` is a failure."""
    if result.measure is None:
        click.echo("traceanalyzer: --fail-on-regression: the runs cannot be compared", err=True)
        return 1
    if result.outcome == "not judged":
        why = "the total of samples depends on duration and threads, so it is not judged"
        if result.measure.name != "samples":
            why = "one step in a run is not enough to tell; record more steps, or several runs"
        click.echo(f"traceanalyzer: --fail-on-regression: {why}", err=True)
        return 1
    change = result.measure.change_frac
    worse = change is None or 100 * change > percent
    return FAILED if result.outcome == "regression" and worse else 0


_FLAGS = {"capacity_bytes": "--capacity", "step_name": "--step-name", "step_every": "--step-every"}
#: Options of each analysis besides the common ones.
_USED = {
    "": tuple(_FLAGS),
    "--oom": ("capacity_bytes",),
    "--growth": ("step_name", "step_every"),
    "--diff": (),
}


@click.command("memory", help=of_memory.MemoryOptions.__doc__)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--oom", is_flag=True, help="Explain each out-of-memory error.")
@click.option("--growth", is_flag=True, help="Show allocations that grow from step to step.")
@analyzer_options(of_memory.DiffOptions, skip=("library_name", "min_bytes"))
@analyzer_options(of_memory.Options)
@analyzer_options(of_memory.OomOptions, skip=("library_name", "min_bytes"))
@analyzer_options(of_memory.GrowthOptions, skip=("library_name", "min_bytes"))
@plotting(ENTRIES["memory"].plot or "")
@reading
@writing
def memory(
    paths: tuple[str, ...],
    oom: bool,
    growth: bool,
    other: str | None,
    capacity_bytes: int | None,
    step_name: str | None,
    step_every: str | None,
    **common: Any,
) -> None:
    """Run the analysis that the options select."""
    import traceanalyzer as ta

    selected = {"--oom": oom, "--growth": growth, "--diff": other is not None}
    names = [name for name, is_selected in selected.items() if is_selected]
    if len(names) > 1:
        raise OptionError(f"{' and '.join(names)} cannot be combined; choose one")
    values = {"capacity_bytes": capacity_bytes, "step_name": step_name, "step_every": step_every}
    variant = "".join(names)
    for name, value in values.items():
        if value is not None and name not in _USED[variant]:
            raise OptionError(f"{_FLAGS[name]} has no effect with {variant}")
    options: dict[str, Any] = {name: values[name] for name in _USED[variant]}
    if other is not None:
        options["other"] = other
    answer(getattr(ta, f"memory{variant.replace('--', '_')}"), paths, **options, **common)


#: Formats written to a file by default.
PICTURES: tuple[Form, ...] = ("svg", "html")

_FORMS: tuple[Form, ...] = (*PICTURES, "table", "md", "json", "csv", "sqlite")
_ENDS = (".gz", ".zst", ".zip", ".json", ".txt", ".parquet", ".sqlite", ".db")


@click.command(help=FlameGraphOptions.__doc__)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@writing_pictures(_FORMS)
@analyzer_options(FlameGraphOptions)
@reading
def flamegraph(
    paths: tuple[str, ...],
    base: str | None,
    reading: ReadingOptions,
    writing: Writing,
    **options: Any,
) -> None:
    """Write the flame graph, by default to a file."""
    import traceanalyzer as ta

    form, path = writing.to, writing.output
    if form not in _FORMS:
        raise OptionError(f"{path}: unknown output format; choose one of {', '.join(_FORMS)}")
    if path is None and form in PICTURES:  # tables go to standard output
        writing = replace(writing, output=default_name(paths[0], form))
    writing.check()
    inputs = inputs_of(paths, quiet=reading.quiet)
    bases = [] if base is None else inputs_of([base], quiet=reading.quiet)
    result = analyze(
        lambda read, bases, **more: ta.flamegraph(read, base=bases or None, **more),
        *(inputs, bases),
        reading=reading,
        **options,
    )
    writing.show(result)
    if writing.output not in (None, output.STDOUT) and not reading.quiet:
        text = prose(f"{writing.output}: {result.verdict}")
        click.echo(click.wrap_text(text, LINE), err=True)


def default_name(path: str, form: str) -> str:
    """Return the default output file of an input: ``profile.raw.svg``, in the current folder."""
    name = Path(path).name or Path(path).resolve().name  # "." is the current folder
    while name.lower().endswith(_ENDS) and name.rpartition(".")[0]:
        name = name.rpartition(".")[0]
    return f"{name or 'flamegraph'}.{form}"


#: Folders in which itwinai stores its profiles.
FOLDERS = ("py-spy-outputs", "py-spy-output")

RATE = 100.0


@click.command("py-spy-report", help=ReportOptions.__doc__)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--file", "more", multiple=True, metavar="PATH", help="Same as PATH.")
@analyzer_options(ReportOptions, only=("library_names", "match", "aggregate_leaf_paths"))
@click.option("--num-rows", metavar=f"N|{ALL}", callback=rows, help="Same as --top.  [default: 10]")
@analyzer_options(ReportOptions, only=("group_by", "by"))
@click.option("--seconds", is_flag=True, help="Show seconds instead of samples.")
@click.option(
    "--rate",
    type=float,
    default=RATE,
    show_default=True,
    metavar="HZ",
    help="Sampling rate: --rate of py-spy record.",
)
@analyzer_options(ReportOptions, only=("drop_module", "exclude_idle_process"))
@reading
@writing
def py_spy_report(
    paths: tuple[str, ...],
    more: tuple[str, ...],
    num_rows: int | str | None,
    seconds: bool,
    rate: float,
    reading: ReadingOptions,
    writing: Writing,
    **options: Any,
) -> None:
    """Read the paths, else standard input, else the default folder."""
    import traceanalyzer as ta

    if num_rows is not None:
        writing = replace(writing, top=num_rows if isinstance(num_rows, int) else None)
    writing.check()
    with _stack_sources([*paths, *more]) as sources:
        inputs, skipped = ta.find_inputs(sources)
        for path, why in () if reading.quiet else skipped:
            click.echo(f"{visible(path)}: {visible(why)}; skipped", err=True)
        options["rate"] = rate if seconds else None
        result = analyze(ta.py_spy_report, inputs, reading=reading, **options)
    writing.show(result)


@contextmanager
def _stack_sources(paths: list[str]) -> Iterator[list[str]]:
    """Yield the paths; without any, piped input, else a default folder.

    An empty pipe is ignored: batch systems and ssh connect one to every program.

    Raises:
        OptionError: there is no input.
    """
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "stdin")
        if output.STDOUT in paths or (not paths and _piped()):
            with copy.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
        if not paths and copy.exists() and copy.stat().st_size:
            paths = [output.STDOUT]
        paths = paths or [name for name in FOLDERS if Path(name).is_dir()][:1]
        if not paths:
            raise OptionError(
                "no input; give a file of py-spy record -f raw or a folder (the default folder "
                f"{FOLDERS[0]} does not exist)"
            )
        yield [str(copy) if path == output.STDOUT else path for path in paths]


def _piped() -> bool:
    """Return whether standard input is a pipe or a file; jobs without a terminal have neither."""
    if sys.stdin is None:
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)
