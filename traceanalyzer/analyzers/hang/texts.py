"""Sentences about stuck operations, and advice that fits their cause."""

from collections.abc import Callable, Sequence

from traceanalyzer.analyzers.common.display import listed
from traceanalyzer.analyzers.hang.waiting import Stall, Stuck
from traceanalyzer.files import packaged
from traceanalyzer.units import format_bytes, format_count, format_first, format_ns, format_ranges

#: Most ranks, operations of a chain, and lines in a sentence.
_MOST_RANGES, _MOST_LINKS, _MOST_PLACES = 12, 4, 3

#: What to try, by cause.
ADVICE: dict[str, str] = packaged("analyzers/hang/advice.toml")

#: Labels of a group by number; line of code of an operation on ranks.
Labels = Callable[[int], str]
Place = Callable[..., str | None]
#: The last completed operation of a rank, and where it is now, as clauses; empty if unknown.
LastOf = Callable[[int], str]


def rank_list(ranks: Sequence[int]) -> str:
    """Return ``rank 2`` or ``ranks 0-3, 6``."""
    parts = format_ranges(sorted(ranks)).split(", ")
    if len(parts) > _MOST_RANGES:
        text = f"{', '.join(parts[:_MOST_RANGES])}, ... ({len(ranks):,} in total)"
    else:
        text = ", ".join(part.replace("-", ", ") if _is_pair(part) else part for part in parts)
    return f"rank{'' if len(ranks) == 1 else 's'} {text}"


def joined_places(places: Sequence[str]) -> str | None:
    """Return ``step (train.py:60)``, or ``step (train.py:60, 61)``; None if there are none.

    Of more than three lines, the range; of several functions or files, at most three.
    """
    several = sorted({*places})
    if len(several) < 2:
        return several[0] if several else None
    parts = [place.rstrip(")").rpartition(":") for place in several]
    if len({before for before, _, _ in parts}) == 1 and all(line.isdecimal() for *_, line in parts):
        lines = sorted(int(line) for *_, line in parts)
        text = ", ".join(map(str, lines)) if len(lines) <= _MOST_PLACES else (
            f"{lines[0]}-{lines[-1]}"
        )  # fmt: skip
        return f"{parts[0][0]}:{text})"
    return format_first(several, _MOST_PLACES)


def _is_pair(part: str) -> bool:
    low, _, high = part.partition("-")
    return bool(high) and int(high) == int(low) + 1


def size_text(one: Stuck) -> str:
    """Return ``12.3 MiB float32``; empty if neither is known."""
    dtype = one.dtype or ""
    size = "" if one.bytes is None else format_bytes(one.bytes)
    return " ".join(part for part in (size, dtype) if part)


def operation(one: Stuck, labels: Labels, *, size: bool = True) -> str:
    """Return ``all_reduce #7 (12.3 MiB float32) of group tp [0-3]``."""
    details = size_text(one) if size else ""
    number = "" if one.is_p2p or one.seq is None else f" #{one.seq}"
    return f"{one.op}{number}{f' ({details})' if details else ''} of group {labels(one.group)}"


def cause_sentence(one: Stuck, labels: Labels, place: Place, last: LastOf) -> str:
    """Return what went wrong with one operation, in one sentence."""
    if one.n_calls:
        return _shift(one, labels)
    if one.calls:
        return _mismatch(one, labels, place)
    if one.is_p2p:
        return _transfer(one, labels, place, last)
    what = operation(one, labels)
    if one.cause in ("missing rank", "no dump", "no record"):
        return _absent(one, what, last)
    if one.candidates:
        return f"{_capital(_waits(one))} in {what}, whose other ranks are not recorded."
    if one.cause == "partly completed":
        return (
            f"All ranks entered {what}, but it completed only on {rank_list(one.completed)}, not "
            f"on {rank_list(one.incomplete)}{_within(one)}: a GPU or network problem, not a "
            "bug in the program."
        )
    if one.cause == "not started":
        return (
            f"All ranks entered {what}, but it has not started on {rank_list(one.scheduled)}"
            f"{_within(one)}: the GPU there still runs earlier work."
        )
    return (
        f"All ranks entered {what} and none completed it{_within(one)}: the network or a GPU, not "
        "the program."
    )


def in_cycle(cycle: Sequence[Stuck]) -> list[int]:
    """Return the rank that waits in each operation of a deadlock for that of the next one."""
    ranks = []
    for one, before in zip(cycle, [cycle[-1], *cycle[:-1]], strict=True):
        waited_for = before.scheduled if before.cause == "not started" else before.blockers
        here = [rank for rank in one.waiting if rank in waited_for] or list(one.waiting)
        ranks.append(here[0])
    return ranks


def odd_one(cycle: Sequence[Stuck]) -> Stuck | None:
    """Return the collective of a deadlock that all ranks but one entered; None without one.

    In the other operations of the deadlock, several ranks are missing.
    """
    alone = [
        one for one in cycle if not one.is_p2p and len(one.blockers) == 1 < len(one.waiting)
        and one.missing
    ]  # fmt: skip
    others = [len(one.blockers) for one in cycle if one not in alone]
    return alone[0] if len(alone) == 1 and min(others, default=0) > 1 else None


def odd_sentence(one: Stuck | None, labels: Labels, place: Place) -> str:
    """Return which rank differs in a deadlock; empty without one."""
    if one is None:
        return ""
    at = _at(place(one, *one.waiting))
    return (
        f"Rank {one.missing[0]} is the one that differs: all other ranks of group "
        f"{labels(one.group)} called {one.op} #{one.seq}{at}."
    )


def deadlock_sentence(cycle: Sequence[Stuck], labels: Labels, place: Place) -> str:
    """Return the operations that wait for each other, in one sentence."""
    ranks, clauses = in_cycle(cycle), []
    for one, rank, target in zip(cycle, ranks, [*ranks[1:], ranks[0]], strict=True):
        at = _at(place(one, rank))
        if one.is_p2p:
            to = "to receive from" if one.op == "recv" else "to send to"
            clauses.append(f"rank {rank} waits {to} rank {target}{at}")
        else:
            what = operation(one, labels, size=False)
            clauses.append(f"rank {rank} waits{at} in {what} for rank {target}")
    across = " across groups" if len({one.group for one in cycle}) > 1 else ""
    more = f", and {len(clauses) - _MOST_LINKS} more" if len(clauses) > _MOST_LINKS else ""
    return (
        f"Deadlock of {rank_list(sorted({*ranks}))}{across}: "
        f"{', '.join(clauses[:_MOST_LINKS])}{more}."
    )


def chain_sentence(chain: Sequence[Stuck], labels: Labels) -> str:
    """Return who waits for whom along a chain, if it has several operations."""
    if len(chain) < 2:
        return ""
    clauses = []
    for one, following in zip(chain, [*chain[1:], None], strict=True):
        blockers = one.scheduled if one.cause == "not started" else one.blockers
        targets = [r for r in blockers if following is None or r in following.waiting]
        name = "" if one.is_p2p or one.seq is None else f" #{one.seq}"
        where = f"{one.op}{name} of group {labels(one.group)}"
        clauses.append((where, targets))
    first = rank_list((chain[0].waiting or chain[0].ended)[:1])
    texts = [f"{first} waits in {clauses[0][0]} for {rank_list(clauses[0][1])}"]
    for where, targets in clauses[1:_MOST_LINKS]:
        text = f"which waits in {where}"
        texts.append(f"{text} for {rank_list(targets)}" if targets else text)
    more = len(clauses) - _MOST_LINKS
    return f"Chain: {', '.join(texts)}{f', and {more} more' if more > 0 else ''}."


def advice(stuck: Stall) -> str:
    """Return what to try about the first cause; empty without one."""
    if stuck.is_deadlock:
        return ADVICE["crossed" if all(one.is_p2p for one in stuck.cycle) else "deadlock"]
    if not stuck.causes:
        return ""
    one = stuck.causes[0]
    return ADVICE["no dump" if one.no_dump and not (one.missing or one.calls) else one.cause]


def between(
    rank: int, last: str | None, other: str | None, now: str | None, *, lock: bool = False
) -> str:
    """Return where a rank went another way than the others; empty if no line is known.

    Args:
        rank: the rank that did not enter the collective.
        last: the line of its last completed operation.
        other: the line at which the other ranks called the collective.
        now: where it is now.
        lock: whether it waits there until another process has built an extension.
    """
    if now and lock:
        return (
            f"rank {rank} waits in {now} for another process that builds the extension "
            "(file_baton.py): if none does any more, delete the file lock in its build folder "
            "(TORCH_EXTENSIONS_DIR, or the cache of the library), and build before the job starts"
        )
    if now:
        return f"look at {now}, where rank {rank} is now instead of at {other or 'the collective'}"
    if not last or not other:
        return ""
    span = f"the code between {last} and {other}" if last != other else f"what follows {last}"
    return (
        f"look at {span}: rank {rank} took another branch, raised an exception that was "
        f"caught, or still runs there (py-spy dump --pid PID on rank {rank} shows the line)"
    )


def _absent(one: Stuck, what: str, last: LastOf) -> str:
    """Describe a collective that ranks did not enter, or whose dump is missing."""
    waits = f"{_waits(one)}{_waited(one)}"
    missing = [rank for rank in one.missing if rank in one.free]
    busy = [rank for rank in one.missing if rank not in one.free]
    verb = "waits" if len(busy) == 1 else "wait"
    more = f"; {rank_list(busy)} did not enter either, and {verb} elsewhere" if busy else ""
    suspects = [rank for rank in one.no_record if rank in one.free]
    if not missing and suspects and not one.no_dump:
        its = "its ring buffer has" if len(suspects) == 1 else "their ring buffers have"
        return (
            f"{_capital(rank_list(suspects))} may never have entered {what}: {its} lost the oldest "
            f"records and {'has' if len(suspects) == 1 else 'have'} none of this group; {waits}"
            f"{more}."
        )
    if not missing:
        is_one = len(one.no_dump) == 1
        dump = "complete dump" if one.truncated else "dump"
        are = f"has no {dump} and is the suspect" if is_one else (
            f"have no {dump} and are the suspects"
        )  # fmt: skip
        all_others = "" if busy else f", which all ranks with a {dump} entered"
        return f"{_capital(rank_list(one.no_dump))} {are}: {waits} in {what}{all_others}{more}."
    done = last(missing[0]) if len(missing) == 1 else ""
    dump = "complete dump" if one.truncated else "dump"
    more += f"; {rank_list(one.no_dump)} without a {dump}" if one.no_dump else ""
    return f"{_capital(rank_list(missing))} never entered {what}; {waits}{done}{more}."


def _transfer(one: Stuck, labels: Labels, place: Place, last: LastOf) -> str:
    """Describe a send or receive without its counterpart."""
    rank = one.waiting[0]
    at = _at(place(one, rank))
    size = f" ({details})" if (details := size_text(one)) else ""
    group = f" in group {labels(one.group)}"
    if one.cause == "unknown peer":
        return f"Rank {rank} waits in coalesced sends or receives{group}{at}{_waited(one)}."
    to, other = ("receive", "send") if one.op == "recv" else ("send", "receive")
    towards = "from" if one.op == "recv" else "to"
    if one.no_dump:
        peer, dump = one.no_dump[0], "complete dump" if one.truncated else "dump"
        return (
            f"Rank {peer} has no {dump} and is the suspect: rank {rank} waits to {to}{size} "
            f"{towards} it{group}{at}{_waited(one)}."
        )
    if one.missing:
        peer = one.missing[0]
        return (
            f"Rank {peer} never called the {other} for the {to} of rank {rank}{size}{group}{at}; "
            f"{_waits(one)}{_waited(one)}{last(peer)}."
        )
    return (
        f"The {to} of rank {rank}{size}{group}{at} has its counterpart and did not complete"
        f"{_within(one)}: a network or GPU problem, not a bug in the program."
    )


def _shift(one: Stuck, labels: Labels) -> str:
    """Describe calls that only some ranks made."""
    (right, others), (line, ranks) = one.calls
    is_more = one.cause == "extra call"
    count = f"{format_count(one.n_calls, 'collective')} {'more' if is_more else 'fewer'}"
    first, then = ((line, ranks), (right, others)) if is_more else ((right, others), (line, ranks))
    return (
        f"{_capital(rank_list(ranks))} called {count} than {rank_list(others)}: {one.op} "
        f"#{one.seq} of group {labels(one.group)} is at {first[0]} on {rank_list(first[1])} and "
        f"already the next one, at {then[0]}, on {rank_list(then[1])}; {_waits(one)}{_waited(one)}."
    )


def _mismatch(one: Stuck, labels: Labels, place: Place) -> str:
    """Describe calls that differ; the majority is right, a tie is named as one."""
    (right, others), *wrong = one.calls
    is_type = one.cause == "type mismatch"
    verb = {"type mismatch": "called", "size mismatch": "passed shape"}.get(one.cause, "passed")
    if one.is_p2p:
        verb = "passed"
    lines = {place(one, *ranks) for _, ranks in one.calls}
    is_same = len(lines) == 1

    def clause(value: str, ranks: Sequence[int]) -> str:
        return f"{rank_list(ranks)} {verb} {value}{'' if is_same else _at(place(one, *ranks))}"

    first = listed([clause(*call) for call in (wrong if one.differing else one.calls)])
    if one.differing:
        sentence = f"{_capital(first)} where {clause(right, others)}"
    elif one.is_p2p:
        sentence = f"{_capital(first)}, the two sides of one transfer"
    else:
        sentence = f"{_capital(first)} (equally many: either may be wrong)"
    what = f"{'' if is_type else f'{one.op} '}#{one.seq} of group {labels(one.group)}"
    if one.is_p2p:
        what = f"in group {labels(one.group)}"
    end = "" if one.is_stuck else "; it completed nevertheless, so its results may be wrong"
    if one.waiting and not one.is_p2p:
        end = f"; {_waits(one)}{_waited(one)}"
    return f"{sentence}: {what}{_at(lines.pop()) if is_same else ''}{end}."


def _at(line: str | None) -> str:
    return f" at {line}" if line else ""


def _waits(one: Stuck) -> str:
    """Return ``ranks 0, 1 wait`` with the ranks where the operation ended."""
    parts = []
    if one.waiting:
        verb = ("has waited" if one.is_exact else "waits") if len(one.waiting) == 1 else (
            "have waited" if one.is_exact else "wait"
        )  # fmt: skip
        parts.append(f"{rank_list(one.waiting)} {verb}")
    if one.ended:
        parts.append(f"it ended on {rank_list(one.ended)}, probably with an error")
    return "; ".join(parts) or "no rank waits"


def _waited(one: Stuck) -> str:
    """Return for how long, if that is known."""
    if one.waited_ns is None:
        return ""
    at_least = "" if one.is_exact else "for at least "
    return f" {at_least}{format_ns(one.waited_ns)}"


def _within(one: Stuck) -> str:
    """Return within which time it did not complete, if that is known."""
    return "" if one.waited_ns is None else f" within {format_ns(one.waited_ns)}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
