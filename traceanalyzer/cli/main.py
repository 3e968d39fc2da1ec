"""The program: its commands, and the only place that catches errors."""

import gc
import logging
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TextIO

import click

from traceanalyzer.cli.commands import Commands
from traceanalyzer.cli.start import STATUS, as_exceptions, ignored
from traceanalyzer.errors import TraceAnalyzerError
from traceanalyzer.render.text import visible


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="traceanalyzer", message="%(prog)s %(version)s")
def cli() -> None:
    """Why is training slow? Reads what profilers wrote and names the cause."""


def run() -> None:
    """Run the command of ``sys.argv`` and exit with its status; ``cli.start`` calls it."""
    as_exceptions()
    if sys.stderr is None:  # closed: what would be said there must not turn up elsewhere
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - to the end
    # without a home it says where it keeps its fonts instead; that is nobody's question
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    # hundreds of thousands of objects are made by imports and stay: looking through them again and
    # again takes a tenth of a second of a small trace, half of it at exit
    gc.set_threshold(20_000, 20, 20)
    # nothing here multiplies matrices, yet a thread per core would be started to wait for that
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # polars keeps what it has freed for half a second, in each thread, but gives a freed column of
    # megabytes back at once; all alike after a twentieth, and by all together, the peak is a tenth
    # lower, and less memory is touched for the first time, which takes long
    os.environ.setdefault(
        "_RJEM_MALLOC_CONF",
        "narenas:1,dirty_decay_ms:50,muzzy_decay_ms:0,oversize_threshold:0",
    )
    code = status(sys.argv[1:])
    ignored()
    code = _flushed(code)
    gc.freeze()  # not looked through once more at exit: a sixth of the time of a small command
    sys.exit(code)


def _flushed(code: int) -> int:
    """The exit status once all output is written: 1 where that fails and it was 0.

    Nothing fails where the reader of the output has left.
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
    """The exit status of a command: 0 ok, 1 bad input, 2 usage; errors are said in one line.

    A reader of our output that leaves (``| head``) ends the program quietly; click sees to that.
    """
    try:
        done = cli.main(arguments, prog_name="traceanalyzer", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return STATUS[signal.SIGINT]
    except TraceAnalyzerError as error:
        return _failed(str(error), error.exit_code)
    except MemoryError:
        return _failed("out of memory; --rank, --since and --until read less", 1)
    except OSError as error:
        _discard(sys.stdout)
        place = f"{error.filename}: " if error.filename else ""
        return _failed(f"{place}{(error.strerror or str(error)).lower()}", 1)
    except Exception as error:  # noqa: BLE001 - the last line of defence: never a traceback
        return _failed(f"internal error: {type(error).__name__}: {error}; please report it", 1)
    return done if isinstance(done, int) else 0


def _failed(message: str, code: int) -> int:
    if os.environ.get("TRACEANALYZER_DEBUG"):
        traceback.print_exc()
    click.echo(f"traceanalyzer: {visible(message)}", err=True)
    return code


def _discard(stream: TextIO | None) -> None:
    """What is still buffered and could not be written must not fail again at exit."""
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
