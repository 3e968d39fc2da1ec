"""``traceanalyzer demo``."""

from importlib import resources
from pathlib import Path
from zipfile import ZipFile

import click

from traceanalyzer import files
from traceanalyzer.cli import output
from traceanalyzer.errors import OutputError
from traceanalyzer.render import TOP, render

_ARCHIVE = "demo.zip"


@click.command()
@click.argument("folder", default="traceanalyzer-demo", metavar="[FOLDER]")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
def demo(folder: str, force: bool) -> None:
    """Write a small recording and its report to FOLDER (default: traceanalyzer-demo).

    The recording is synthetic: traces of a training on 8 GPUs, in which the data loader of rank 5
    is slow twice, and a memory snapshot. It is part of the package; nothing is downloaded.
    """
    import traceanalyzer as ta

    run, page = Path(folder, "run"), Path(folder, "report.html")
    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{run}: cannot be created: {error.strerror}") from None
    archive = resources.files(__package__).joinpath(_ARCHIVE)
    with archive.open("rb") as data, ZipFile(data) as recording:
        targets = {name: str(run / name) for name in recording.namelist()}
        for path in (*targets.values(), str(page)):
            files.check(path, force=force, keyword="--force")
        for name, path in targets.items():
            output.write(recording.read(name), path)
    report = ta.report([run], named=[str(run)])
    output.write(render(report, "html", top=TOP["report"]), str(page))
    lines = (
        f"{run}: {len(targets)} files of a training on 8 GPUs",
        f"{page}: {report.verdict}",
        "",
        f"Open {page} in a browser. More of the same recording:",
        f"  traceanalyzer diagnose {run}",
        f"  traceanalyzer comm-outliers {run}",
        f"  traceanalyzer memory {run / 'memory.pickle'} --growth",
    )
    click.echo("\n".join(lines))
