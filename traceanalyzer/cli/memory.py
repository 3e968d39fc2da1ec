"""``traceanalyzer memory``: one command, four analyses."""

from typing import Any

import click

from traceanalyzer.analyzers.memory import (
    DiffOptions,
    GrowthOptions,
    MemoryOptions,
    OomOptions,
    Options,
)
from traceanalyzer.analyzers.registry import ENTRIES
from traceanalyzer.cli.answering import answer
from traceanalyzer.cli.commands import analyzer_options
from traceanalyzer.cli.options import plotting, reading, writing
from traceanalyzer.errors import OptionError

_FLAGS = {"capacity_bytes": "--capacity", "step_name": "--step-name", "step_every": "--step-every"}
#: Options of each analysis besides the common ones.
_USED = {
    "": tuple(_FLAGS),
    "--oom": ("capacity_bytes",),
    "--growth": ("step_name", "step_every"),
    "--diff": (),
}


@click.command("memory", help=MemoryOptions.__doc__)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--oom", is_flag=True, help="Explain each out-of-memory error.")
@click.option("--growth", is_flag=True, help="Show allocations that grow from step to step.")
@analyzer_options(DiffOptions, skip=("library_name", "min_bytes"))
@analyzer_options(Options)
@analyzer_options(OomOptions, skip=("library_name", "min_bytes"))
@analyzer_options(GrowthOptions, skip=("library_name", "min_bytes"))
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
    analysis = getattr(ta, f"memory{variant.replace('--', '_')}")
    answer(analysis, paths, **options, **common)
