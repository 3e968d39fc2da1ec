"""``traceanalyzer convert``."""

import os
from pathlib import Path

import click

from traceanalyzer.cli import output
from traceanalyzer.cli.answering import inputs_of, report
from traceanalyzer.cli.options import ReadingOptions, reading_here
from traceanalyzer.cli.progress import progress
from traceanalyzer.errors import OptionError

_STEM_ENDS = (".gz", ".zst", ".zip", ".json", ".pfw", ".parquet", ".trace", ".pt", ".sqlite", ".db")


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="IN...")
@click.option(
    "-o", "--output", "out", required=True, metavar="OUT", help="File; folder for several inputs."
)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@reading_here
def convert(paths: tuple[str, ...], out: str, force: bool, reading: ReadingOptions) -> None:
    """Convert traces to Parquet, Chrome JSON, an SQLite database or speedscope stacks.

    The suffix of OUT selects the format: .parquet, .json or .json.gz (for Perfetto), .sqlite or
    .db (for SQL and Datasette), .speedscope.json. If IN is several files or a folder, OUT is a
    folder with one Parquet file per input; every command accepts such a folder in place of the
    original files.
    """
    import traceanalyzer as ta
    from traceanalyzer.exporters import writer_for

    inputs = inputs_of(paths, quiet=reading.quiet)
    for flag, rank in (("--rank", reading.rank), ("--assume-rank", reading.assume_rank)):
        if rank is not None and len(inputs) > 1:
            raise OptionError(f"{flag} takes one input file (got {len(inputs)})")
    targets = _targets(list(dict.fromkeys(inputs)), out)
    for target in targets:
        writer_for(target)
        output.check(target, force=force)
    with progress(inputs, quiet=reading.quiet) as meter:
        for target, path in targets.items():
            trace = ta.convert(path, target, force=force, **reading.arguments(), progress=meter)
            report(path, trace.issues.to_dicts(), quiet=reading.quiet)


def _targets(inputs: list[str], out: str) -> dict[str, str]:
    """Return the input of each file to write."""
    folder = Path(out)
    if folder.is_dir():
        return {str(folder / name): path for name, path in _names(inputs).items()}
    if len(inputs) == 1:
        return {out: inputs[0]}
    if folder.suffix:
        raise OptionError(
            f"{out}: {len(inputs)} inputs need an output folder; use -o FOLDER. To write them to "
            "one timeline, use traceanalyzer merge -o run.pftrace"
        )
    folder.mkdir()
    return _targets(inputs, out)


def _names(inputs: list[str]) -> dict[str, str]:
    """Return the Parquet file name of each input, from its path below the common folder."""
    common = os.path.commonpath([Path(path).absolute().parent for path in inputs])
    names = ["_".join(Path(path).absolute().relative_to(common).parts) for path in inputs]
    stems = [_stem(name) for name in names]
    distinct = stems if len(set(stems)) == len(stems) else names
    return {f"{name}.parquet": path for name, path in zip(distinct, inputs, strict=True)}


def _stem(name: str) -> str:
    while name.lower().endswith(_STEM_ENDS):
        name = name.rpartition(".")[0]
    return name
