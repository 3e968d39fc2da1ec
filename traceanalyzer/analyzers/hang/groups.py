"""Process groups of all ranks: which are the same, and which ranks belong to them."""

import re
from dataclasses import dataclass

import polars as pl

from traceanalyzer.schema import MAX_RANKS
from traceanalyzer.units import format_ranges

_Ranks = tuple[int, ...]
#: Name and ranks of a group; None if its ranks are not recorded.
_Key = tuple[str, _Ranks | None]

#: Description and name of the default group.
DEFAULT, FIRST = "default_pg", "0"
_RANGE = re.compile(r"(\d{1,7})(?:\s*-\s*(\d{1,7}))?")
_MOST = 1 << 17
#: Descriptions that say nothing.
_NAMELESS = ("", "undefined")


@dataclass(frozen=True)
class Groups:
    """The process groups of a job.

    Attributes:
        table: one row per group: group UInt32, name, description, label (with its ranks), ranks
            List(Int32), is_known (whether the dumps list its ranks; else those with records).
        members: group, rank, place (rank within the group).
        keys: rank, name, group: the group of each name on a rank.
    """

    table: pl.DataFrame
    members: pl.DataFrame
    keys: pl.DataFrame

    @classmethod
    def of(cls, rows: pl.DataFrame, dumps: pl.DataFrame) -> "Groups":
        """Identify groups by name and ranks.

        Groups of one name with different ranks are different. Without recorded ranks, the default
        group has all ranks up to the highest known one, any other those whose dumps have it.

        Args:
            rows: rank, group (the name), description, ranks (text, or null), one per rank.
            dumps: the ranks with a dump.
        """
        texts = rows["ranks"].drop_nulls().unique().to_list()
        parsed = {text: ranks for text in texts if (ranks := parse_ranks(text))}
        known = [rank for ranks in parsed.values() for rank in ranks]
        world = max([*known, *dumps["rank"].to_list()], default=-1) + 1
        recorded: dict[str, set[_Ranks]] = {}
        for name, text in rows.select("group", "ranks").unique(maintain_order=True).iter_rows():
            if text in parsed:
                recorded.setdefault(name, set()).add(parsed[text])
        observed: dict[str, list[int]] = {}
        descriptions: dict[_Key, str | None] = {}
        keys: list[tuple[int, str, _Ranks | None]] = []
        columns = rows.select("rank", "group", "description", "ranks")
        for rank, name, description, text in columns.iter_rows():
            members: _Ranks | None = parsed.get(text)
            if members is None:
                matches = [one for one in recorded.get(name, ()) if rank in one]
                members = matches[0] if len(matches) == 1 else None
            is_default = description == DEFAULT or name == FIRST
            if members is None and is_default and world <= _MOST:
                members = tuple(range(world))
                recorded.setdefault(name, set()).add(members)
            if members is None:
                observed.setdefault(name, []).append(rank)
            descriptions[name, members] = descriptions.get((name, members)) or description
            keys.append((rank, name, members))
        return cls._built(descriptions, observed, keys)

    @classmethod
    def _built(
        cls,
        descriptions: dict[_Key, str | None],
        observed: dict[str, list[int]],
        keys: list[tuple[int, str, _Ranks | None]],
    ) -> "Groups":
        number = {key: at for at, key in enumerate(descriptions)}
        table, members = [], []
        for (name, ranks), description in descriptions.items():
            at = number[name, ranks]
            these = list(ranks) if ranks else sorted({*observed[name]})
            title = name if description in (None, *_NAMELESS) else description
            label = f"{title} [{format_ranges(these)}{'' if ranks else ', ...'}]"
            table.append((at, name, description, label, these, ranks is not None))
            members += [(at, rank, place) for place, rank in enumerate(these)]
        frame = pl.DataFrame(
            table,
            schema={
                "group": pl.UInt32, "name": pl.String, "description": pl.String,
                "label": pl.String, "ranks": pl.List(pl.Int32), "is_known": pl.Boolean,
            },
            orient="row",
        )  # fmt: skip
        twice = pl.col("label").is_duplicated()
        frame = frame.with_columns(
            label=pl.when(twice).then(pl.format("{} ({})", "label", "name")).otherwise("label")
        )
        return cls(
            frame,
            pl.DataFrame(
                members,
                schema={"group": pl.UInt32, "rank": pl.Int32, "place": pl.Int32},
                orient="row",
            ),
            pl.DataFrame(
                [(rank, name, number[name, ranks]) for rank, name, ranks in keys],
                schema={"rank": pl.Int32, "name": pl.String, "group": pl.UInt32},
                orient="row",
            ).unique(["rank", "name"], keep="first", maintain_order=True),
        )

    def with_group(self, records: pl.DataFrame) -> pl.DataFrame:
        """Add the group of each record, by rank and name."""
        return records.join(
            self.keys, on=["rank", "name"], how="left", maintain_order="left"
        ).drop_nulls("group")

    def label(self, group: int) -> str:
        """Return the label of a group."""
        text: str = self.table["label"][group]
        return text


def parse_ranks(text: str) -> tuple[int, ...]:
    """Parse a list of ranks, such as ``[0, 1, 2]`` or ``0-3``; empty if there is none."""
    ranks: set[int] = set()
    for match in _RANGE.finditer(text):
        low = int(match[1])
        high = int(match[2]) if match[2] else low
        if high - low >= _MOST or high >= MAX_RANKS or len(ranks) > _MOST:
            return ()
        ranks.update(range(low, high + 1))
    return tuple(sorted(ranks))
