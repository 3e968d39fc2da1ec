"""All files of a job: its ranks one after another, and every analysis as a method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from traceanalyzer.analyzers.methods import AnalysisMethods
from traceanalyzer.parsers.source import rank_from_name
from traceanalyzer.run.find import collect_inputs
from traceanalyzer.run.pieces import How, OpenedInputs
from traceanalyzer.run.read import read
from traceanalyzer.trace import PathLike, Trace


def read_job(paths: PathLike | Sequence[PathLike]) -> Job:
    """Open the files of a job, of one or all ranks; each is read when it is needed.

    Args:
        paths: a folder (searched recursively for files of known formats), a file, or a list of
            them.

    Returns:
        The job: ``job.diagnose()``, ``job.gpu_idle(by="step")``; ``for trace in job``; ``job[5]``.

    Raises:
        UnreadableFile: a path does not exist, or a folder has no readable file.
    """
    return Job(paths)


class Job(AnalysisMethods):
    """The files of a job. Every analysis is a method, as of a trace, and covers all ranks.

    ``job.comm_outliers()`` is ``traceanalyzer.comm_outliers(job.files)``: it reads only what its
    answer needs, one file at a time. Nothing is kept between calls. Iteration reads each file
    completely and yields a trace per rank; ``job[5]`` reads the file of rank 5; ``len(job)`` is the
    number of traces that iteration yields. Keep a trace in a variable to use it several times.

    Attributes:
        files: the files, in reading order.
        skipped: other files of the folders, with the reason why they are skipped.
    """

    def __init__(self, paths: PathLike | Sequence[PathLike]) -> None:
        self.files, self.skipped = collect_inputs(paths)

    @property
    def _inputs(self) -> Any:
        return self.files

    @cached_property
    def _files_of_ranks(self) -> list[tuple[int | None, str]]:
        """The rank and file of each trace; a file with one rank is read without its events."""
        pairs: list[tuple[int | None, str]] = []
        for path in self.files:
            rank = read(path, kinds=()).meta.rank
            ranks = [rank] if rank is not None else [one.meta.rank for one in self._traces([path])]
            pairs += [(one, path) for one in ranks]
        return pairs

    @property
    def ranks(self) -> tuple[int | None, ...]:
        """The rank of each trace, in the order of iteration; None for a file without a rank."""
        return tuple(rank for rank, _ in self._files_of_ranks)

    def _traces(self, paths: Sequence[str]) -> Iterator[Trace]:
        for opened in OpenedInputs(self.files, None, How()).each(paths):
            yield from opened

    def __iter__(self) -> Iterator[Trace]:
        return self._traces(self.files)

    def __len__(self) -> int:
        return len(self._files_of_ranks)

    def __getitem__(self, rank: int) -> Trace:
        """Read the trace of a rank.

        Raises:
            KeyError: no file has this rank.
        """
        named = [path for path in self.files if rank_from_name(path) == rank]
        others = [path for one, path in self._files_of_ranks if one == rank] if not named else []
        for trace in self._traces([*named, *others]):
            if trace.meta.rank == rank:
                return trace
        known = ", ".join(str(one) for one in self.ranks if one is not None)
        raise KeyError(f"no rank {rank}; this job has rank {known or '(none recorded)'}")

    def __repr__(self) -> str:
        first = f": {self.files[0]}" if self.files else ""
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        return f"<Job of {len(self.files)} file{'s' if more else ''}{first}{more}>"
