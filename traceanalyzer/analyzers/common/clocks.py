"""Common axis of recordings: whether their clocks can be compared, and what aligns them."""

from collections.abc import Hashable, Sequence


def one_clock(
    epochs: Sequence[int | None], begins: Sequence[int], ends: Sequence[int], *, pauses_ns: int = 0
) -> bool:
    """Whether times of several recordings can be compared.

    They can if absolute times are known of all or of none, and the recordings are of one stretch of
    time: no longer than all of them together and the pauses between them.

    Args:
        epochs: absolute time of 0 of each recording, or None.
        begins: first times, absolute if known.
        ends: last times, likewise.
        pauses_ns: known time between recordings of a rank.
    """
    known = len({epoch is None for epoch in epochs}) == 1
    return known and max(ends) - min(begins) <= sum(ends) - sum(begins) + pauses_ns


def to_zero(begins: Sequence[int], owners: Sequence[Hashable], *, one_clock: bool) -> list[int]:
    """Return what is added to the times of each recording so that the axis begins at 0.

    Args:
        begins: first time of each recording.
        owners: whose recording it is: without one clock, each owner begins at 0.
        one_clock: all begin at the first time of all.
    """
    of = [None] * len(begins) if one_clock else owners
    first = dict[Hashable, int]()
    for owner, begin in zip(of, begins, strict=True):
        first[owner] = min(begin, first.get(owner, begin))
    return [-first[owner] for owner in of]
