"""The program: its commands and its error handling."""

import gc
import logging
import os
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import TextIO

import click

from traceanalyzer import __version__
from traceanalyzer.cli.commands import Commands
from traceanalyzer.cli.signals import STATUS, as_exceptions, ignore
from traceanalyzer.errors import TraceAnalyzerError
from traceanalyzer.render.text import visible

_EXAMPLES = """\b
Examples:
  traceanalyzer run/            diagnose all files of a run
  traceanalyzer report run/     write one page with all analyses"""


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EXAMPLES,
)
@click.option(  # read by cli.output
    "--pager/--no-pager",
    default=True,
    help="Show output longer than the terminal in a pager (TRACEANALYZER_PAGER, PAGER, less).",
)
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
def cli(*, pager: bool) -> None:
    """Find out why training is slow: analyze GPU profiler traces and name the causes."""


def run() -> None:
    """Run the command of ``sys.argv`` and exit with its status; the package calls it."""
    as_exceptions()
    if sys.stderr is None:  # closed: messages must not go to another file
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - to the end
    # without a home folder matplotlib logs the location of its font cache
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    # imports create hundreds of thousands of permanent objects: scanning them repeatedly takes a
    # tenth of a second with a small trace, half of it at exit
    gc.set_threshold(20_000, 20, 20)
    # OpenBLAS would start a thread per core, and no matrix is multiplied
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # by default each thread keeps freed memory of its own and returns large columns at once: one
    # arena that keeps all of it for a second needs less memory, with fewer page faults
    os.environ.setdefault(
        "_RJEM_MALLOC_CONF", "narenas:1,dirty_decay_ms:1000,muzzy_decay_ms:0,oversize_threshold:0"
    )
    warnings.formatwarning = lambda text, *_, **__: f"traceanalyzer: {visible(str(text))}\n"
    code = status(sys.argv[1:])
    ignore()
    code = _flushed(code)
    gc.freeze()  # no scan at exit, which takes a sixth of the time of a small command
    sys.exit(code)


def _flushed(code: int) -> int:
    """Flush all output; return the exit status, 1 instead of 0 if that fails.

    A closed pipe is not a failure.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError as error:
            _discard(stream)
            if not isinstance(error, BrokenPipeError):
                code = code or 1
    return code


def status(arguments: list[str]) -> int:
    """Run a command; return 0 (ok), 1 (bad input) or 2 (usage). An error is one line.

    A closed pipe (``| head``) ends the program without a message; click handles that.
    """
    try:
        done = cli.main(arguments, prog_name="traceanalyzer", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as error:
        if isinstance(end := error.__cause__, EOFError):  # of a .pyc; click takes it for Ctrl-D
            return _failed(f"internal error: EOFError: {end}; please report it", 1)
        return STATUS[signal.SIGINT]
    except TraceAnalyzerError as error:
        return _failed(str(error), error.exit_code)
    except MemoryError:
        return _failed("out of memory; use --rank, --since or --until to read less", 1)
    except OSError as error:
        _discard(sys.stdout)
        place = f"{error.filename}: " if error.filename else ""
        return _failed(f"{place}{(error.strerror or str(error)).lower()}", 1)
    except Exception as error:  # noqa: BLE001 - users never see a traceback
        return _failed(f"internal error: {type(error).__name__}: {error}; please report it", 1)
    return done if isinstance(done, int) else 0


def _failed(message: str, code: int) -> int:
    if os.environ.get("TRACEANALYZER_DEBUG"):
        traceback.print_exc()
    click.echo(f"traceanalyzer: {visible(message)}", err=True)
    return code


def _discard(stream: TextIO | None) -> None:
    """Discard buffered output, whose write would fail again at exit."""
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
