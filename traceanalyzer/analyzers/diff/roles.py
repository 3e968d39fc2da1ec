"""Kernels of two runs paired by their role: operator and shapes, position, neighbors, not name.

The places of both runs (see :class:`Units`) are aligned in the order of a typical step, so that the
sum of the likeness of the pairs is largest. Names count little: another version or another GPU has
other kernels for the same role. Places without a partner in the same order are paired by equal
operator and shapes, or names; eager kernels with the kernel that TorchInductor fused them into.

A unit is the kernels, copies and memsets that one call of an operator launched, if they are few;
else, and without operators, it is one of them. Units are in the order of their launch calls, those
of a graph replay in the order of their start. A place is a unit with the units before and after it
on its stream: the same kernel at two positions of a layer is two places.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import prod

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.analyzers.common import kernel_names
from traceanalyzer.analyzers.common.device_work import COMMUNICATION
from traceanalyzer.analyzers.common.display import listed
from traceanalyzer.analyzers.common.launching import launch_rows
from traceanalyzer.analyzers.common.names import mapped
from traceanalyzer.analyzers.kernels import compute as kernels
from traceanalyzer.analyzers.operators import call_tree
from traceanalyzer.analyzers.operators.compute import Excerpt
from traceanalyzer.frames import intervals, nesting, slice_tree
from traceanalyzer.frames.numbering import numbered
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import collective_of_kernel

Hashes = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]

#: An operator call with more kernels runs a part of the program: each kernel is a unit.
_MOST_KERNELS = 8
#: With more places, units that run in varying order make new ones: neighbors are ignored.
_MOST_PLACES = 20_000
_SPACE = re.compile(r"\s+")
#: Separator of the names of a unit's kernels.
BETWEEN = "\n"
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Units:
    """The places of one rank.

    Attributes:
        places: ``place`` and ``unit`` (hashes with and without the neighbors), ``operator`` and
            ``shapes`` (null if unknown), ``names`` of its kernels, ``family`` of the longest one,
            ``order``: in a typical step, then elsewhere.
        times: by step: ``mark`` (null outside of any step), ``place``, ``nth`` (of its unit in the
            step, null outside of any), ``n``, ``total_ns``.
    """

    places: pl.DataFrame
    times: pl.DataFrame


def measure(
    trace: Trace,
    work: pl.DataFrame,
    part: kernels.Part,
    excerpt: Excerpt | None,
    typical: int | None,
) -> Units:
    """Return the places of one rank.

    Args:
        trace: its trace.
        work: rows of :func:`~traceanalyzer.analyzers.common.device_work.device_work`, with
            ``mark``, the start of the step.
        part: the kernels of the same work, in the same order.
        excerpt: its operators; None without any.
        typical: the mark of a typical step; None without steps.
    """
    rows = _in_order(trace, work, part, excerpt)
    first = np.flatnonzero(_begins(rows))
    sizes = np.diff(np.append(first, rows.height))
    names = part.kernels["name"].cast(pl.String).fill_null("")
    hashes = _hashes(rows, names, first, sizes)
    places = _with_neighbors(hashes, rows[first])
    if np.unique(places).size > _MOST_PLACES:
        places = hashes
    unit = np.repeat(np.arange(first.size), sizes)
    total = pl.DataFrame({"unit": unit, "ns": rows["length_ns"]}).group_by("unit").agg(pl.sum("ns"))
    units = rows[first].select("operator", "shapes", "optimizes", "mark").with_columns(
        pl.Series("first", first), pl.Series("size", sizes), pl.Series("place", places),
        pl.Series("unit", hashes), total.sort("unit")["ns"].alias("total_ns"),
    )  # fmt: skip
    nth = pl.when(pl.col("mark").is_not_null()).then(pl.int_range(pl.len()).over("mark", "unit"))
    sums = units.group_by("mark", "place", nth=nth).agg(
        n=pl.len().cast(pl.Int64), total_ns=pl.col("total_ns").sum()
    )
    return Units(_described(units, rows, names, part.kernels["family"], typical), sums)


def _in_order(
    trace: Trace, work: pl.DataFrame, part: kernels.Part, excerpt: Excerpt | None
) -> pl.DataFrame:
    """Return device work in order of launch.

    Returns:
        device, stream, mark, kernel, length_ns, and the columns of :func:`_calls`.
    """
    launch = launch_rows(trace, work)
    known = launch != nesting.ROOT
    at = work["start"].to_numpy().copy()
    if 2 * known.sum() > known.size:
        at[known] = trace.events["ts"].to_numpy()[launch[known]]
    rows = work.select("device", "stream", "mark").hstack(part.work[["kernel", "length_ns"]])
    return rows.hstack(_calls(work.height, excerpt))[np.argsort(at, kind="stable")]


def _calls(height: int, excerpt: Excerpt | None) -> pl.DataFrame:
    """Return the operator call of each piece of work: call, operator, shapes; null if unknown.

    ``optimizes``: whether it is in a step of an optimizer.
    """
    call, optimizes = np.full(height, -1, np.int64), np.zeros(height, np.bool_)
    operator = shapes = pl.Series([None] * height, dtype=pl.String)
    if excerpt is not None:
        tree = call_tree.build(excerpt.calls)
        caller = call_tree.callers(excerpt.work, tree)
        count = np.bincount(caller[caller != nesting.ROOT], minlength=tree.height)
        is_unit = (tree["kind"] == "cpu_op").to_numpy() & (count <= _MOST_KERNELS)
        known = (caller != nesting.ROOT) & is_unit[caller]
        call[known] = caller[known]
        steps = mapped(tree["name"], lambda text: text.startswith(_OPTIMIZER_STEP), pl.Boolean)
        within = slice_tree.nearest(tree, steps.to_numpy())[caller] != nesting.ROOT
        optimizes = (caller != nesting.ROOT) & within
        number = intervals.nullable("call", call, known)
        operator = tree["name"].cast(pl.String).gather(number)
        if "input_dims" in tree:
            shapes = tree["input_dims"].cast(pl.String).gather(number)
            shapes = mapped(shapes, lambda text: _SPACE.sub("", text).replace(",", ", "))
    known = {"call": call, "operator": operator, "shapes": shapes, "optimizes": optimizes}
    return pl.DataFrame(known)


def _begins(rows: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Return which rows are the first one of a unit."""
    call = rows["call"].to_numpy()
    begins = np.ones(rows.height, np.bool_)
    begins[1:] = (call[1:] != call[:-1]) | (call[1:] < 0)
    return begins


def _hashes(rows: pl.DataFrame, names: pl.Series, first: Rows, sizes: Rows) -> Hashes:
    """Return the hash of the operator, shapes and names of each unit."""
    of_name = names.hash().to_numpy()[rows["kernel"].to_numpy()]
    place = (np.arange(rows.height) - np.repeat(first, sizes)).astype(np.uint64)
    summed = np.add.reduceat(of_name * (np.uint64(2) * place + np.uint64(1)), first)
    of_call = rows[first].select("operator", "shapes").hash_rows().to_numpy()
    return np.asarray(summed * _FACTOR + of_call, np.uint64)


def _with_neighbors(hashes: Hashes, units: pl.DataFrame) -> Hashes:
    """Return the hash of each unit and those before and after it on its stream in its step."""
    lane = numbered([units["device"], units["stream"], units["mark"]])[1]
    order = np.argsort(lane, kind="stable")
    ordered, lanes = hashes[order], lane[order]
    same = np.zeros(hashes.size + 1, np.bool_)
    same[1:-1] = lanes[1:] == lanes[:-1]
    before = np.where(same[:-1], np.roll(ordered, 1), np.uint64(0))
    after = np.where(same[1:], np.roll(ordered, -1), np.uint64(0))
    places = np.empty_like(hashes)
    places[order] = (ordered * _FACTOR + before) * _FACTOR + after
    return places


def _described(
    units: pl.DataFrame,
    rows: pl.DataFrame,
    names: pl.Series,
    families: pl.Series,
    typical: int | None,
) -> pl.DataFrame:
    """Return one row per place, in the order of a typical step."""
    elsewhere = pl.col("mark").ne_missing(pl.lit(typical, pl.Int64))
    one = units.sort(elsewhere, maintain_order=True).unique(
        "place", keep="first", maintain_order=True
    )
    first, size = one["first"].to_numpy(), one["size"].to_numpy()
    unit = np.repeat(np.arange(first.size), size)
    at = np.arange(unit.size) + np.repeat(first - np.cumsum(size) + size, size)
    kernel = rows["kernel"].gather(at)
    members = pl.DataFrame({
        "unit": unit, "name": names.gather(kernel), "family": families.gather(kernel),
        "length_ns": rows["length_ns"].gather(at),
    })  # fmt: skip
    of_units = members.group_by("unit", maintain_order=True).agg(
        pl.col("name").str.join(BETWEEN),
        pl.col("family").get(pl.col("length_ns").arg_max().fill_null(0)),
    )
    of_units = of_units.with_columns(one["optimizes"], pl.col("family").cast(pl.String))
    optimizes = pl.col("optimizes") & pl.col("family").is_in(_ANYWHERE)
    family = (
        pl.when(optimizes).then(pl.lit(kernel_names.OPTIMIZER)).otherwise("family").alias("family")
    )
    return one.select(
        "place", "unit", "operator", "shapes", names=of_units["name"],
        family=of_units.select(family).to_series(), order=pl.int_range(pl.len()),
    )  # fmt: skip


Scores = npt.NDArray[np.float32]
Pairs = list[tuple[int, int]]

#: Most places of a run that are aligned: those with most time.
_MOST = 2_500
#: Likeness of two places: of the operator, its shapes, the family and the names of the kernels.
#: Pairs need at least ``_LEAST``.
_OPERATOR, _SHAPES, _FAMILY, _GENERIC, _NAMES = 4, (2, -3), 3, 1, 3
_UNLIKE, _LEAST = -2, 2
#: What is added if one runs more than this many times as often.
_COUNT = {0.0: 1, 1.1: -1, 2.0: -1, 4.0: -2}
#: Families of kernels that occur anywhere: the same family is weak evidence.
_ANYWHERE = {"elementwise", "copy", "reduce", "index", "other", "random", "sort"}
#: Start of the names of ranges of PyTorch in which an optimizer updates parameters.
_OPTIMIZER_STEP = "Optimizer.step#"
#: Operators of one purpose, in any precision and layout, and by any library.
_PRODUCT = re.compile(r"(?i)(?:^|::)(?:\w*_)?(?:mm|addmm|bmm|baddbmm|matmul|linear|gemm)(?:_\w+)?$")
_ATTENTION = re.compile(r"(?i)attention|flash_?attn|fmha")
_CONVOLUTION = re.compile(r"::\w*conv(?:olution|\dd|_depthwise)\w*$")
#: Kernels of one family may be named after the other.
_ALSO = {"moe": "gemm", "convolution": "gemm", "softmax": "attention"}
#: From this number of places on, runs with equal counts in the same order are the same program.
_MANY = 8
#: Fused kernels are at most this many pairs before or after the eager ones, and run at most this
#: many times as often or as seldom.
_NEAR = 3
_NUMBER = re.compile(r"_\d+(?:d\w*)?$")
_NAMED = 3
#: A shape in the inputs of an operator (of numbers that a size may be), and how many are named.
_SHAPE = re.compile(r"(?<!\d)\d{1,18}(?!\d)(?:, \d{1,18}(?!\d)){0,63}")
_SHAPES_NAMED = 2
#: How a role is paired.
SAME, OTHER, FUSED = "same kernel", "other kernel", "fused"


@dataclass(frozen=True)
class Pairing:
    """The roles of two runs.

    Attributes:
        of: of each run, ``place`` and ``role`` (a number).
        roles: one row per role: role, operator, shapes, family, ``before`` and ``after`` (short
            names of the kernels, null without any), pairing (null if only one run has the role),
            sure (the operator and shapes or the names are equal), reshaped (the shapes before and
            after, if the operator is the same and they differ), time_ns.
        paired_frac: the smaller share of the device time of a run in roles that both have.
        sure_frac: the same for roles that are sure.
    """

    of: tuple[pl.DataFrame, pl.DataFrame]
    roles: pl.DataFrame
    paired_frac: float
    sure_frac: float


@dataclass(frozen=True)
class _Side:
    """The places of a run, in order; call and inputs are those of :func:`_purpose`."""

    place: pl.Series
    unit: list[int]
    operator: list[str | None]
    shapes: list[str | None]
    names: list[str]
    plain: list[str]
    family: list[str]
    operations: list[str]
    call: list[str | None]
    inputs: list[str | None]
    count: npt.NDArray[np.float64]
    total_ns: npt.NDArray[np.int64]


def first_shapes(text: str, after: int = 0) -> str:
    """Return the first shapes of inputs, without scalars, or those after some."""
    shapes = _SHAPE.findall(text)[after:][:_SHAPES_NAMED]
    return ", ".join([shape.replace(", ", "x") for shape in shapes])


@lru_cache(maxsize=65_536)
def _purpose(operator: str | None, shapes: str | None) -> tuple[str | None, str | None]:
    """Return what an operator does and the sizes it depends on, whatever its variant.

    A matrix product by its three dimensions, attention by the size of the query.
    """
    name, text = operator or "", shapes or ""
    sizes = [[int(n) for n in one.split(", ")] for one in _SHAPE.findall(text)]
    backward = " backward" * ("backward" in name.lower())
    if _PRODUCT.search(name) and not backward:
        return "product", _product([one for one in sizes if len(one) > 1]) or shapes
    if _ATTENTION.search(name):
        query = next((f"{prod(one)}, {one[-1]}" for one in sizes if len(one) > 2), shapes)
        return f"attention{backward}", query
    if _CONVOLUTION.search(name) and not backward:
        return "convolution", str(sizes[:2]) if sizes else shapes
    return operator, shapes


def _product(sizes: Sequence[list[int]]) -> str | None:
    """Return rows, summed dimension and columns; what is added or written comes first."""
    for one, two in [*pairwise(sizes[:3])][::-1]:
        if one[-1] in two[-2:]:
            rows, columns = one[:-1], two[-1] if two[-2] == one[-1] else two[-2]
            if one is sizes[0] or [*rows, columns] == sizes[0]:
                return str([prod(rows), one[-1], columns])
    return None


def pair(before: Units, after: Units) -> Pairing:
    """Pair the places of two runs."""
    sides = (_side(before), _side(after))
    unlike = _has_operators(sides[0]) != _has_operators(sides[1])
    if unlike:  # only names are known in both
        sides = (_without_operators(sides[0]), _without_operators(sides[1]))
    is_same = _is_same_program(*sides)
    pairs = [(at, at) for at in range(len(sides[0].unit))] if is_same else _aligned(*sides)
    roles = _Roles(sides, pairs)
    if not is_same:
        _join_rest(roles)
        _join_fused(roles)
        _join_alike(roles)
    if unlike:
        _join_named(roles)
    _join_optimizers(roles)
    return roles.pairing(is_same=is_same)


def _has_operators(side: _Side) -> bool:
    """Whether operators were recorded: collectives are known by their kernels, too."""
    each = zip(side.operator, side.family, strict=True)
    return any(name for name, family in each if family != COMMUNICATION)


def _without_operators(side: _Side) -> _Side:
    """Return a side as one in which no operators were recorded."""
    unknown: list[str | None] = [None] * len(side.unit)
    return replace(side, operator=unknown, shapes=unknown, call=unknown, inputs=unknown)


def _side(units: Units) -> _Side:
    """Return the places of a run with their numbers per step."""
    times = units.times.filter(pl.col("mark").is_not_null())
    times = times if times.height else units.times
    steps = max(times.select("rank", "source", "mark").unique().height, 1)
    sums = units.times.group_by("place").agg(pl.col("n", "total_ns").sum())
    rows = units.places.join(sums, on="place", how="left", maintain_order="left")
    names = rows["names"].to_list()
    parts = [text.split(BETWEEN) for text in names]
    shapes, calls = rows["shapes"].to_list(), rows["operator"].to_list()
    for at, family in enumerate(rows["family"]):
        if family == COMMUNICATION:
            calls[at] = collective_of_kernel(names[at]) or calls[at]
    purposes = [_purpose(*call) for call in zip(calls, shapes, strict=True)]
    return _Side(
        rows["place"], rows["unit"].to_list(), calls, shapes,
        names, [BETWEEN.join(_NUMBER.sub("", one) for one in part) for part in parts],
        rows["family"].to_list(),
        [" ".join(filter(None, map(kernel_names.fused_operations, part))) for part in parts],
        [call for call, _ in purposes], [inputs for _, inputs in purposes],
        rows["n"].fill_null(0).to_numpy() / steps, rows["total_ns"].fill_null(0).to_numpy(),
    )  # fmt: skip


# --- alignment -------------------------------------------------------------------------------


def _are_equal_calls(before: _Side, after: _Side) -> bool:
    """Whether the operators are equal; of communication one may be unknown, as by its kernel."""
    of_both = zip(before.operator, after.operator, before.family, after.family, strict=True)
    return all(
        one == two or (None in (one, two) and families == [COMMUNICATION] * 2)
        for one, two, *families in of_both
    )


def _is_same_program(before: _Side, after: _Side) -> bool:
    """Whether the same operators run as often in the same order, whatever the kernels' names."""
    if before.count.size != after.count.size or not _are_equal_calls(before, after):
        return False
    copies = [[one.startswith("mem") for one in side.family] for side in (before, after)]
    named = sum(one is not None for one in before.operator)
    enough = before.count.size >= _MANY or 2 * named > before.count.size
    return enough and copies[0] == copies[1] and np.allclose(before.count, after.count, rtol=1e-3)


def _aligned(before: _Side, after: _Side) -> Pairs:
    """Return the pairs of an alignment with the largest sum of scores."""
    kept = [np.sort(np.argsort(-side.total_ns, kind="stable")[:_MOST]) for side in (before, after)]
    scores = _scores(before, after, *kept)
    best = np.zeros((kept[0].size + 1, kept[1].size + 1), np.float32)
    for row, score in enumerate(scores):
        paired = np.maximum(best[row, 1:], best[row, :-1] + score)
        best[row + 1, 1:] = np.maximum.accumulate(paired)
    pairs: Pairs = []
    row, column = kept[0].size, kept[1].size
    while row and column:
        value = best[row, column]
        if value == best[row - 1, column]:
            row -= 1
        elif value == best[row, column - 1]:
            column -= 1
        else:
            row, column = row - 1, column - 1
            pairs.append((int(kept[0][row]), int(kept[1][column])))
    return pairs[::-1]


def _scores(before: _Side, after: _Side, *kept: npt.NDArray[np.int64]) -> Scores:
    """Return the likeness of each place before and after; far below 0 if they are no pair."""

    def codes(values: Sequence[Sequence[Hashable]]) -> list[npt.NDArray[np.int64]]:
        number: dict[Hashable, int] = {None: -1, "": -1}
        return [
            np.array([number.setdefault(side[at], len(number)) for at in rows], np.int64)
            for side, rows in zip(values, kept, strict=True)
        ]

    def compared(name: str) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        one, other = codes([getattr(side, name) for side in (before, after)])
        known = (one[:, None] >= 0) & (other[None, :] >= 0)
        equal = one[:, None] == other[None, :]
        return known & equal, known & ~equal

    (same_call, other_call), (same_family, other_family) = compared("call"), compared("family")
    same_shapes, other_shapes = compared("inputs")
    same_names, _ = compared("plain")
    scores = _OPERATOR * same_call + _UNLIKE * other_call.astype(np.float32)
    scores += same_call * (_SHAPES[0] * same_shapes + _SHAPES[1] * other_shapes)
    also = [[_ALSO.get(one, one) for one in side.family] for side in (before, after)]
    one, other = codes(also)
    related = one[:, None] == other[None, :]
    generic = np.array([before.family[at] in _ANYWHERE for at in kept[0]])[:, None]
    of_family = np.where(same_family & ~generic, _FAMILY, np.where(related, _GENERIC, _UNLIKE))
    scores += np.where(other_family & same_call, 0, of_family) + _NAMES * same_names
    counts = [side.count[rows] for side, rows in zip((before, after), kept, strict=True)]
    ratio = counts[0][:, None] / np.maximum(counts[1][None, :], 1e-9)
    ratio = np.maximum(ratio, 1 / np.maximum(ratio, 1e-9))
    for factor, score in _COUNT.items():
        scores += score * (ratio > factor)
    # a kernel that runs anywhere, and in both runs, is in place of no other one
    in_both = {*before.plain} & {*after.plain}
    both = [
        np.array([side.plain[at] in in_both for at in rows], np.bool_)
        for side, rows in zip((before, after), kept, strict=True)
    ]
    stays = generic & ~same_call & ~same_names & (both[0][:, None] | both[1][None, :])
    stays |= other_call & np.array([before.family[at] == COMMUNICATION for at in kept[0]])[:, None]
    # a call with inputs that most calls of both runs have is in place of no other one
    shared = (_shared(before, after)[kept[0]], _shared(after, before)[kept[1]])
    stays |= same_call & other_shapes & (shared[0][:, None] | shared[1][None, :])
    possible = _possible(before, after, *kept) & ~stays & (scores >= _LEAST)
    return np.where(possible, scores, -1e6)


def _shared(side: _Side, other: _Side) -> npt.NDArray[np.bool_]:
    """Return the places whose call and inputs the other run has, if they have most of the time."""
    keys = {*zip(other.call, other.inputs, strict=True)}
    shared = np.array([one in keys for one in zip(side.call, side.inputs, strict=True)], np.bool_)
    return shared & bool(2 * side.total_ns[shared].sum() > side.total_ns.sum())


def _possible(before: _Side, after: _Side, *kept: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether both are kernels, copies or communication, and both or none fused by Inductor."""
    sorts = []
    for side, rows in zip((before, after), kept, strict=True):
        of_family = [(f.startswith("mem"), f == COMMUNICATION) for f in side.family]
        sorts.append(
            np.array([4 * of_family[at][0] + 2 * of_family[at][1] + bool(side.operations[at])
                      for at in rows], np.int64)
        )  # fmt: skip
    return np.asarray(sorts[0][:, None] == sorts[1][None, :])


# --- roles -----------------------------------------------------------------------------------


class _Roles:
    """Places of both runs joined to roles; places after are numbered after those before."""

    def __init__(self, sides: tuple[_Side, _Side], pairs: Pairs) -> None:
        self.sides = sides
        self.first = len(sides[0].unit)
        self.parent = list(range(self.first + len(sides[1].unit)))
        self.fused: set[int] = set()
        self.pairs = pairs
        for one, other in pairs:
            self.join(one, self.first + other)

    def root(self, at: int) -> int:
        """Return the number of the role of a place."""
        while self.parent[at] != at:
            self.parent[at] = self.parent[self.parent[at]]
            at = self.parent[at]
        return at

    def join(self, one: int, other: int) -> None:
        """Make the roles of two places one."""
        low, high = sorted((self.root(one), self.root(other)))
        self.parent[high] = low

    def single(self) -> list[list[int]]:
        """Return the places of each run whose role has none in the other run."""
        runs: dict[int, set[bool]] = defaultdict(set)
        for at in range(len(self.parent)):
            runs[self.root(at)].add(at >= self.first)
        alone = [at for at in range(len(self.parent)) if len(runs[self.root(at)]) == 1]
        return [[at for at in alone if (at >= self.first) == after] for after in (False, True)]

    def of(self, at: int) -> tuple[_Side, int]:
        """Return the run of a place, and its number there."""
        return (self.sides[0], at) if at < self.first else (self.sides[1], at - self.first)

    def pairing(self, *, is_same: bool) -> Pairing:
        """Return the roles."""
        members: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for at in range(len(self.parent)):
            members[self.root(at)][at >= self.first].append(at)
        fused = {self.root(at) for at in self.fused}
        names = {name for side in self.sides for text in side.names for name in text.split(BETWEEN)}
        short = kernel_names.short_names(names)
        rows = [
            {"role": role, **self._described(both, role in fused, short, is_same=is_same)}
            for role, both in members.items()
        ]
        roles = pl.DataFrame(rows, schema=_ROLE)
        numbers = [self.root(at) for at in range(len(self.parent))]
        of = [
            pl.DataFrame({"place": side.place, "role": pl.Series(some, dtype=pl.Int64)})
            for side, some in zip(
                self.sides, (numbers[: self.first], numbers[self.first :]), strict=True
            )
        ]
        paired = roles.filter(pl.col("pairing").is_not_null())
        shares = [self._share({*some["role"]}) for some in (paired, paired.filter("sure"))]
        return Pairing((of[0], of[1]), roles, shares[0], shares[1])

    def _share(self, roles: set[int]) -> float:
        """Return the smaller share of time of a run in some roles."""
        shares = []
        for side, first in zip(self.sides, (0, self.first), strict=True):
            inside = [self.root(first + at) in roles for at in range(len(side.unit))]
            total = int(side.total_ns.sum())
            shares.append(float(side.total_ns[inside].sum()) / total if total else 0.0)
        return min(shares)

    def _described(
        self, both: tuple[list[int], list[int]], is_fused: bool, short: dict[str, str],
        *, is_same: bool,
    ) -> dict[str, object]:  # fmt: skip
        """Return operator, shapes, family, kernels and pairing of a role."""
        texts = [self._kernels(places, short, by_time=not is_fused) for places in both]
        places = both[0] or both[1]
        side, at = self.of(max(places, key=lambda one: self._time(one)))
        pairing = reshaped = None
        sure = is_same
        if both[0] and both[1]:
            keys = [{(s.call[i], s.inputs[i]) for s, i in map(self.of, some)} for some in both]
            plain = [{s.plain[i] for s, i in map(self.of, some)} for some in both]
            reshaped = self._reshaped(both, is_alike=bool(keys[0] & keys[1]))
            sure |= bool(plain[0] & plain[1]) or any(None not in key for key in keys[0] & keys[1])
            pairing = FUSED if is_fused else SAME if texts[0] == texts[1] else OTHER
        operator, of_inputs = side.operator[at], side.shapes[at]
        calls = [s.operator[i] for s, i in map(self.of, sorted((*both[0], *both[1])))]
        named = [*dict.fromkeys(filter(None, calls))]
        if is_fused or len(named) == len(both):
            operator = listed(named)
        if is_fused:
            operator, of_inputs = (
                (None if side.family[at] == kernel_names.OPTIMIZER else operator),
                None,
            )
        return {
            "operator": operator, "shapes": of_inputs, "family": side.family[at],
            "before": texts[0], "after": texts[1], "pairing": pairing, "sure": sure,
            "reshaped": None if is_fused else reshaped,
            "time_ns": sum(map(self._time, (*both[0], *both[1]))),
        }  # fmt: skip

    def _reshaped(self, both: tuple[list[int], list[int]], *, is_alike: bool) -> str | None:
        """Return the shapes before and after if one call has others.

        Alike are sizes of a purpose; one operator of attention has those of its keys, too.
        """
        calls = [{s.call[i] or "" for s, i in map(self.of, some)} for some in both]
        operators = [{s.operator[i] for s, i in map(self.of, some)} for some in both]
        of = [{s.shapes[i] or "" for s, i in map(self.of, some)} for some in both]
        backward = int(calls[0] == {"attention backward"})
        shapes = [[first_shapes(text, after=backward) for text in sorted(some)] for some in of]
        is_one = operators[0] == operators[1] and calls[0] <= {"attention", "attention backward"}
        is_known = all(shapes[0]) and all(shapes[1]) and calls[0] == calls[1]
        is_other = is_known and not ((is_alike and not is_one) or {*shapes[0]} & {*shapes[1]})
        return f"{shapes[0][0]} before, {shapes[1][0]} after" if is_other else None

    def _time(self, at: int) -> int:
        side, number = self.of(at)
        return int(side.total_ns[number])

    def _kernels(self, places: list[int], short: dict[str, str], *, by_time: bool) -> str | None:
        """Return the short names of the kernels of some places, in order or the longest first."""
        if not places:
            return None
        ordered = sorted(places, key=lambda at: -self._time(at) if by_time else at)
        texts = [side.names[number] for side, number in map(self.of, ordered)]
        names = [*dict.fromkeys(short[name] for text in texts for name in text.split(BETWEEN))]
        names.sort(key=lambda name: name.startswith(("Memset", "Memcpy")))
        more = len(names) - _NAMED
        return listed([*names[:_NAMED], *([f"{more} more"] if more > 0 else [])])


_ROLE = {
    "role": pl.Int64, "operator": pl.String, "shapes": pl.String, "family": pl.String,
    "before": pl.String, "after": pl.String, "pairing": pl.String, "sure": pl.Boolean,
    "reshaped": pl.String, "time_ns": pl.Int64,
}  # fmt: skip


def _keys() -> Iterator[Callable[[_Side, int], Hashable]]:
    """Yield what places without a partner are paired by, the strongest first."""
    yield lambda side, at: side.unit[at]
    yield (lambda side, at: side.call[at] and side.inputs[at] and (side.call[at], side.inputs[at]))
    yield lambda side, at: side.plain[at]


def _join_rest(roles: _Roles) -> None:
    """Pair places without a partner by equal operators and shapes, or names."""
    for key in _keys():
        groups: dict[Hashable, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for after, alone in enumerate(roles.single()):
            for at in alone:
                groups[key(*roles.of(at))][after].append(at)
        for value, both in groups.items():
            if value and both[0] and both[1]:
                for at in (*both[0][1:], *both[1]):
                    roles.join(both[0][0], at)


def _join_alike(roles: _Roles) -> None:
    """Give places without a partner the role of a paired place of their run that is like them.

    That is the same unit between other neighbors, the same operator with the same shapes next to it
    (it runs once more, or once less, than in the other run), or a kernel without a recorded
    operator that has the same name.
    """
    for after, alone in enumerate(roles.single()):
        side, first, single = roles.sides[after], after * roles.first, {*alone}
        paired = [at for at in range(len(side.unit)) if first + at not in single]
        known: dict[Hashable, int] = {side.plain[at]: at for at in reversed(paired)}
        known |= {side.unit[at]: at for at in reversed(paired)}
        calls = list(zip(side.call, side.inputs, strict=True))
        for at in (at - first for at in alone):
            near = [one for one in (at - 1, at + 1) if 0 <= one < len(calls)]
            next_to = (one for one in near if first + one not in single and calls[one] == calls[at])
            # without an operator, the name of the kernel is all that is known
            other = next(next_to, None) if calls[at][0] else known.get(side.plain[at])
            like = known.get(side.unit[at], other)
            if like is not None:
                roles.join(first + at, first + like)


def _join_optimizers(roles: _Roles) -> None:
    """Make one role of the optimizers of both runs if most of their time is in other operators."""
    of = [
        [at for at, one in enumerate(side.family) if one == kernel_names.OPTIMIZER]
        for side in roles.sides
    ]
    times = [Counter[str | None](), Counter[str | None]()]
    for side, places, time in zip(roles.sides, of, times, strict=True):
        for at in places:
            time[side.operator[at]] += int(side.total_ns[at])
    shared = times[0].keys() & times[1].keys()
    if all(of) and all(2 * sum(map(time.__getitem__, shared)) < time.total() for time in times):
        for at in (*of[0], *(roles.first + one for one in of[1])):
            roles.join(of[0][0], at)
        roles.fused.add(of[0][0])


def _join_named(roles: _Roles) -> None:
    """Join all places of both runs whose kernels have the same names."""
    first = dict[str, int]()
    for at in range(len(roles.parent)):
        side, number = roles.of(at)
        roles.join(first.setdefault(side.plain[number], at), at)


def _join_fused(roles: _Roles) -> None:
    """Join eager kernels to the nearest kernel of Inductor that has their operation."""
    anchors = [np.array([one[side] for one in roles.pairs]) for side in (0, 1)]
    alone = roles.single()
    counts = [Counter[int](), Counter[int]()]
    for side, count in zip(roles.sides, counts, strict=True):
        for unit, n in zip(side.unit, side.count, strict=True):
            count[unit] += n

    def runs_of(at: int) -> float:
        """Return how often the unit of a place runs per step."""
        side, number = roles.of(at)
        return counts[at >= roles.first][side.unit[number]]

    for after in (False, True):
        fused, same = [], dict[int, int]()
        for at in alone[after]:
            side, number = roles.of(at)
            if side.operations[number] and not counts[not after][side.unit[number]]:
                gap = int(np.searchsorted(anchors[after], number))
                fused.append((gap, at, f"_{side.operations[number].replace(' ', '_')}_"))
                roles.join(at, same.setdefault(side.unit[number], at))
        for at in alone[not after]:
            side, number = roles.of(at)
            if side.operator[number] is None or side.operations[number]:
                continue
            name = (side.operator[number] or "").rpartition("::")[2].rstrip("_")
            gap = int(np.searchsorted(anchors[not after], number))
            near = [
                (abs(gap - other), target)
                for other, target, text in fused
                if abs(gap - other) <= _NEAR
                and f"_{name}_" in text
                and 1 / _NEAR <= runs_of(at) / max(runs_of(target), 1e-9) <= _NEAR
            ]
            if near:
                roles.join(at, min(near)[1])
                roles.fused.add(at)
