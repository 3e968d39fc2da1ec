"""The store of baselines: runs saved by name, each a folder of summaries and a file of facts.

::

    .traceanalyzer/baselines/       or $TRACEANALYZER_BASELINES
        main/                       a baseline
            run-1/                  one of its runs
                baseline.json       facts, see :class:`Facts`
                rank0.json-....parquet

A run is written to a hidden folder, which is renamed when it is complete, so that several processes
can save at once: none sees an incomplete run, and no run replaces another one.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Annotated, Final

import msgspec

from traceanalyzer import __version__, errors
from traceanalyzer.files import is_running
from traceanalyzer.units import format_first

#: Number of the layout of stored parts (summaries, baselines). Raised when a type or a table of a
#: part changes, or the meaning of its numbers: ``tests/run/test_stored_parts.py``.
PARTS_SCHEMA = 64
#: How the command line and functions name a baseline in place of a path: ``baseline:main``.
PREFIX: Final = "baseline:"
#: The folder of all baselines, and the variable for another one.
FOLDER, VARIABLE = ".traceanalyzer/baselines", "TRACEANALYZER_BASELINES"
FACTS: Final = "baseline.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RUN = re.compile(r"run-([1-9]\d{0,5})")
_MOST_BYTES = 1 << 20
#: Most missing files that are named.
_NAMED = 3
_EXISTS = (errno.EEXIST, errno.ENOTEMPTY)
_AGAIN = "save it again with traceanalyzer baseline save --force"


_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
_Text = Annotated[str, msgspec.Meta(max_length=1_000)]
_Texts = Annotated[tuple[_Text, ...], msgspec.Meta(max_length=1_000)]
_Time = Annotated[float, msgspec.Meta(ge=0, lt=1 << 63)]


@dataclass(frozen=True)
class Facts:
    """What ``baseline.json`` says about a run.

    Attributes:
        schema: :data:`PARTS_SCHEMA` of the program that saved it.
        program: version of that program.
        saved: time, as ISO 8601 in UTC.
        inputs: number of summaries.
        ranks: number of recorded ranks.
        world_size: number of ranks of the job; None if unknown.
        gpus: names of its GPUs.
        software: versions of drivers and libraries.
        profilers: formats of the traces, and their versions.
        steps: number of counted steps; None without steps.
        step_ns: median step time in ns; None without steps.
        files: names of the files of the run, the first thousand.
    """

    schema: int
    program: _Text
    saved: _Text
    inputs: _Count
    ranks: _Count
    world_size: _Count | None = None
    gpus: _Texts = ()
    software: _Texts = ()
    profilers: _Texts = ()
    steps: _Count | None = None
    step_ns: _Time | None = None
    files: _Texts = ()


@dataclass(frozen=True)
class SavedRun:
    """One run of a baseline.

    Attributes:
        path: its folder.
        facts: what is known about it; None if it cannot be used.
        problem: why it cannot be used, or the files that are missing; empty if it is complete.
    """

    path: Path
    facts: Facts | None
    problem: str = ""


# --- names -----------------------------------------------------------------------------------


def store() -> Path:
    """Return the folder of all baselines."""
    return Path(os.environ.get(VARIABLE) or FOLDER)


def checked(name: str) -> str:
    """Return the name of a baseline.

    Raises:
        OptionError: it is not a name.
    """
    if not _NAME.fullmatch(name) or ".." in name:
        raise errors.OptionError(
            f"{name!r} is not the name of a baseline; use up to 64 letters, digits, '.', '_' and "
            "'-', the first one a letter or a digit"
        )
    return name


def is_named(path: str) -> bool:
    """Whether a path means a baseline; an existing file or folder of that name is a path."""
    return path.startswith(PREFIX) and not os.path.lexists(path)


def resolved(path: str) -> str:
    """Return the folder of the run that represents a baseline; other paths stay as they are.

    Of several runs, the one with the median step time represents the baseline.

    Raises:
        InputError: there is no such baseline, or a run of it cannot be used.
        OptionError: the name is invalid.
    """
    return str(_representative(usable_runs(_name_of(path))).path) if is_named(path) else path


def run_paths(path: str) -> list[str]:
    """Return the folders of all runs of a baseline; another path is one run.

    Raises:
        InputError, OptionError: as :func:`resolved`.
    """
    if not is_named(path):
        return [path]
    return [str(run.path) for run in usable_runs(_name_of(path))]


def _name_of(path: str) -> str:
    return checked(path.removeprefix(PREFIX))


def _representative(runs: list[SavedRun]) -> SavedRun:
    timed = [
        (run.facts.step_ns, number)
        for number, run in enumerate(runs)
        if run.facts is not None and run.facts.step_ns is not None
    ]
    return runs[sorted(timed)[(len(timed) - 1) // 2][1]] if timed else runs[0]


# --- read ------------------------------------------------------------------------------------


def names() -> list[str]:
    """Return the names of all baselines, sorted.

    Raises:
        UnreadableFile: the store cannot be read.
    """
    with _reading(store()):
        if not os.path.lexists(store()):
            return []
        return sorted(
            one.name for one in store().iterdir() if _NAME.fullmatch(one.name) and one.is_dir()
        )


def has_runs(name: str) -> bool:
    """Whether a folder of the store is a baseline."""
    return bool(_numbers(store() / name))


def runs_of(name: str) -> list[SavedRun]:
    """Return the runs of a baseline in the order in which they were saved, damaged ones too.

    Raises:
        UnreadableFile: there is no such baseline.
        OptionError: the name is invalid.
    """
    folder = store() / checked(name)
    if not folder.is_dir():
        raise _unknown(name)
    with _reading(folder):
        numbers = [int(m[1]) for one in folder.iterdir() if (m := _RUN.fullmatch(one.name))]
    if not numbers:
        raise errors.UnreadableFile(f"{PREFIX}{name}", "missing: all of its runs", hint=_AGAIN)
    return [_run(folder / f"run-{number}") for number in sorted(numbers)]


def usable_runs(name: str) -> list[SavedRun]:
    """Return the runs of a baseline.

    Raises:
        InputError: there is no such baseline, or one of its runs cannot be used.
        OptionError: the name is invalid.
    """
    runs = runs_of(name)
    for run in runs:
        if run.facts is None:
            raise errors.MalformedInput(
                f"{PREFIX}{name}", run.problem, where=run.path.name, hint=_AGAIN
            )
    return runs


def _unknown(name: str) -> errors.UnreadableFile:
    known = names()
    there = f"known: {', '.join(known)}" if known else f"{store()} has none"
    return errors.UnreadableFile(
        f"{PREFIX}{name}",
        f"no such baseline; {there}",
        hint="traceanalyzer baseline save NAME run/",
    )


def _run(folder: Path) -> SavedRun:
    try:
        facts = _facts((folder / FACTS).read_bytes()[: _MOST_BYTES + 1])
        return SavedRun(folder, facts, _missing(folder, facts))
    except OSError as error:
        return SavedRun(folder, None, f"{FACTS}: {(error.strerror or 'cannot be read').lower()}")
    except (ValueError, TypeError, RecursionError) as error:
        return SavedRun(folder, None, str(error)[:200])


def _missing(folder: Path, facts: Facts) -> str:
    """Return which files of a run are missing; empty if none is."""
    lost = [name for name in facts.files if not (folder / PurePath(name).name).is_file()]
    if not lost:
        return ""
    return f"missing: {format_first([name[:200] for name in lost], _NAMED)}"


def _facts(data: bytes) -> Facts:
    """Return the checked facts of a run.

    Raises:
        ValueError, TypeError: damaged, or of another schema.
    """
    if len(data) > _MOST_BYTES:
        raise ValueError(f"{FACTS} is too large")
    try:
        known = json.loads(data)
    except ValueError:
        raise ValueError(f"{FACTS} is truncated or damaged") from None
    if not isinstance(known, dict) or type(known.get("schema")) is not int:
        raise ValueError(f"{FACTS} is damaged: no schema version")
    program = str(known.get("program"))[:40]
    if known["schema"] != PARTS_SCHEMA:
        raise ValueError(
            f"saved by traceanalyzer {program} (schema {known['schema']}); this is {__version__} "
            f"(schema {PARTS_SCHEMA})"
        )
    try:
        return msgspec.json.decode(data, type=Facts)
    except ValueError as error:
        name = re.findall(r"`(?:\$\.)?(\w+)[^`]*`$", str(error))
        raise ValueError(
            f"{FACTS} is damaged: {name[0] if name else 'a value'} is missing or of another type"
        ) from None


# --- write -----------------------------------------------------------------------------------


@contextmanager
def new_run(name: str, *, add: bool = False, force: bool = False) -> Iterator[Path]:
    """Yield an empty hidden folder, which becomes a run of the baseline when the block succeeds.

    Args:
        name: the baseline.
        add: add the run to those of the baseline.
        force: replace those that it has now.

    Raises:
        OptionError: the name is invalid.
        OutputError: the baseline exists (without ``add`` and ``force``), or cannot be written.
    """
    target = store() / checked(name)
    earlier = _numbers(target)
    if earlier and not (add or force):
        raise _exists(name)
    with _writing(target):
        store().mkdir(parents=True, exist_ok=True)
        hidden = _hidden(name)
        run = hidden / "run-1"
        _remove_abandoned(name)
        shutil.rmtree(hidden, ignore_errors=True)
        run.mkdir(parents=True)
    try:
        yield run
        with _writing(target):
            if add or force:
                _move_in(run, target)
            elif not _renamed(hidden, target):  # saved by another process meanwhile
                raise _exists(name)
            for number in earlier if force else ():
                _discard(target / f"run-{number}", name)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def write_facts(run: Path, facts: Facts) -> None:
    """Write the facts of a run; the last file of it."""
    with _writing(run):
        text = json.dumps(asdict(facts), indent=2)
        (run / FACTS).write_text(f"{text}\n", encoding="utf-8")


def remove(name: str) -> None:
    """Remove a baseline with all its runs.

    Raises:
        UnreadableFile: there is no such baseline.
        OptionError: the name is invalid.
        OutputError: it cannot be removed.
    """
    folder = store() / checked(name)
    if not folder.is_dir():
        raise _unknown(name)
    with _writing(folder):
        _discard(folder, name)


def _exists(name: str) -> errors.OutputError:
    return errors.OutputError(
        f"{PREFIX}{name}: exists; --add adds a run for the noise, --force replaces its runs"
    )


def _numbers(folder: Path) -> list[int]:
    with suppress(OSError):
        return [int(m[1]) for one in folder.iterdir() if (m := _RUN.fullmatch(one.name))]
    return []


def _move_in(run: Path, target: Path) -> None:
    """Rename a complete run to the first free number; other processes may do the same."""
    number = max(_numbers(target), default=0) + 1
    while True:
        target.mkdir(exist_ok=True)
        try:
            if _renamed(run, target / f"run-{number}"):
                return
            number += 1
        except FileNotFoundError:  # removed by another process after mkdir
            continue


def _renamed(source: Path, target: Path) -> bool:
    """Rename a folder; False if the target has files."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in _EXISTS:
            return False
        raise
    return True


def _hidden(name: str) -> Path:
    return store() / f".{name}.{os.uname().nodename[:64]}.{os.getpid()}.part"


def _remove_abandoned(name: str) -> None:
    """Remove hidden folders of the baseline left by ended processes of this machine."""
    start = f".{name}.{os.uname().nodename[:64]}."
    for one in store().iterdir():
        pid = one.name.removeprefix(start).split(".")[0]
        is_part = one.name.startswith(start) and one.name.endswith(".part") and pid.isdecimal()
        if is_part and not is_running(int(pid)):
            shutil.rmtree(one, ignore_errors=True)


def _discard(folder: Path, name: str) -> None:
    """Remove a folder: all of it at once for readers."""
    gone = _hidden(name).with_suffix(f".{folder.name}.part")
    with suppress(FileNotFoundError):  # removed by another process
        folder.rename(gone)
        if gone.is_symlink():
            gone.unlink()
        else:
            shutil.rmtree(gone)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except errors.InputError:
        raise
    except OSError as error:
        raise errors.UnreadableFile(path, str(error.strerror).lower()) from None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise errors.OutputError(f"{path}: cannot be written: {error.strerror}") from None
