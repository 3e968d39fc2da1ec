"""What a parser is: a :class:`Format` that can recognise its files and turn one into a Trace."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from traceanalyzer.parsers.source import Source
from traceanalyzer.trace import Trace

#: Called with (bytes read so far, bytes in all) of the file on disk.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Selection:
    """What the caller needs; a parser leaves out the rest as early as it can.

    Attributes:
        kinds: event kinds wanted, ``counter`` and ``flow`` for those tables; None means all.
        names: literal substrings; an event whose name holds one is wanted whatever its kind.
        columns: columns wanted beyond the ones always made (``args``, ``input_dims``).
        unused: columns of ``events`` and side tables that the caller does not look at; a parser
            may leave them null or empty.
        windows: (start, end) in ns on the file's clock; only events that overlap one of them are
            wanted. Empty for all.
    """

    kinds: frozenset[str] | None = None
    names: tuple[str, ...] = ()
    columns: frozenset[str] = frozenset()
    unused: frozenset[str] = frozenset()
    windows: tuple[tuple[int, int], ...] = ()

    def wants(self, kind: str, name: str | None) -> bool:
        """Whether an event of this kind and name is asked for."""
        if self.kinds is None or kind in self.kinds:
            return True
        return bool(self.names and name and self._name_pattern.search(name))

    @cached_property
    def _name_pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.names)))


@dataclass(frozen=True)
class Format:
    """A file format: how to recognise it and how to read it.

    Attributes:
        name: the word for ``--format``.
        suffixes: usual file name endings, for help texts only; detection is by content.
        description: one line.
        spec_url: where the format is described.
        sniff: ``(first 64 KiB after decompression, path) -> bool``; pure, never raises.
        parse: ``(source, selection, progress) -> Trace``; raises ``InputError`` for bytes it
            cannot use, notes recoverable loss in ``Trace.issues``, never prints.
        priority: the higher is asked first; unique among the formats. Those of other packages are
            asked when none of ours above 0 recognises a file.
    """

    name: str
    suffixes: tuple[str, ...]
    description: str
    spec_url: str
    sniff: Callable[[bytes, str], bool]
    parse: Callable[[Source, Selection, Progress | None], Trace]
    priority: int
