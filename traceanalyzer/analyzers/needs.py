"""What an analysis asks a parser for: the less, the faster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Needs:
    """Events an analysis reads: these kinds, and any event whose name holds one of ``names``.

    Attributes:
        kinds: event kinds; ``counter``, ``flow`` and ``lane`` for those tables.
        names: substrings of names.
        columns: columns made only on request.
        unused: columns of ``events`` that are not looked at; formats that store columns leave them
            null.
        samples: whether address, stack and weight are looked at, which events with a duration have
            no use for.
    """

    kinds: frozenset[str]
    names: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    samples: bool = False
