"""Peak bandwidth of the link between the ranks of a process group.

Peaks are in 10^9 bytes per second, per GPU and direction. Sources: the vendors' public data sheets,
which state both directions together (V100, A100, H100, H200, B200, MI300X); PCIe x16 by generation.
Only messages of 16 MiB and more reach a bus bandwidth near the peak.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.comm_outliers.collectives import Part

#: Smaller messages are latency-bound.
LARGE_BYTES = 16 * 2**20

#: A longer transfer time is not latency-bound, even between nodes.
NO_LATENCY_NS = 1_000_000

#: The slowest usual network between GPUs: 10 Gbit/s.
LEAST_GBPS = 1.25

#: The link between GPUs of one node by device name; the first match counts.
_LINKS: tuple[tuple[str, str, float], ...] = (
    (r"V100-SXM", "NVLink 2", 150),
    (r"A100-SXM", "NVLink 3", 300),
    (r"A800-SXM", "NVLink 3", 200),
    (r"H100 PCIe", "PCIe 5", 64),
    (r"H100 80GB HBM3|H100.*SXM|\bH200(?! NVL)\b|\bH20\b", "NVLink 4", 450),
    (r"H800(?! PCIe)", "NVLink 4", 200),
    (r"\bB200\b", "NVLink 5", 900),
    (r"MI3(?:00|25)X", "Infinity Fabric", 448),
    (r"A100-PCI|A800 .*PCI|\bL4\b|\bL40S?\b|\bA10G?\b", "PCIe 4", 32),
    (r"Tesla T4|\bT4\b|V100-PCI", "PCIe 3", 16),
)

#: Between nodes, per GPU: 200 Gbit/s, the slowest usual network. Rings use all GPUs' adapters.
NETWORK, _NETWORK_GBPS = "network", 25.0

#: GPUs of a node if the file does not list them.
_USUAL_GPUS = 8

_TYPES = {"link": pl.String, "link_gbps": pl.Float64}


@dataclass(frozen=True)
class _Place:
    """Where one rank runs."""

    host: str | None
    gpu: str | None
    node_gpus: int


def with_links(instances: pl.DataFrame, parts: Sequence[Part]) -> pl.DataFrame:
    """Add ``link`` and ``link_gbps``: the link between the group's ranks, its peak per direction.

    A group is within a node if its ranks have one host name; without host names, if it has no more
    ranks than the node has GPUs and they are of one block of that size. Otherwise the link is the
    network, with 25 GB/s for each of its ranks in a node. Null if the device or the group's size is
    unknown.
    """
    places = {part.rank: _Place(part.host, part.gpu, part.node_gpus) for part in parts}
    keys = ["rank", "group_size", "group_ranks"]
    groups = instances.select(keys).unique()
    rows = [_link(places, *row) for row in groups.iter_rows()]
    links = pl.DataFrame(rows, schema=_TYPES, orient="row")
    joined = pl.concat([groups, links], how="horizontal")
    return instances.join(joined, on=keys, how="left", nulls_equal=True, maintain_order="left")


def local_link(gpu: str | None) -> tuple[str | None, float | None]:
    """Return the link between GPUs of one node by the device's name; None if unknown."""
    for pattern, name, gbps in _LINKS:
        if gpu and re.search(pattern, gpu):
            return name, gbps
    return None, None


#: Larger groups are not placed rank by rank; a file may record any size.
_MOST_RANKS = 1 << 16


def _link(
    places: dict[int | None, _Place], rank: int, size: int | None, ranks: str | None
) -> tuple[str | None, float | None]:
    place = places[rank]
    if size is None or size < 2:
        return None, None
    listed = [int(number) for number in re.findall(r"\d+", ranks or "")]
    members = listed or range(min(size, _MOST_RANKS))
    known = [places[member].host for member in members if member in places]
    hosts = {host for host in known if host is not None}
    gpus = place.node_gpus or _USUAL_GPUS
    one_block = size <= gpus and len({member // gpus for member in members}) == 1
    one_node = len(hosts) == 1 if hosts and len(known) == size else one_block and len(hosts) < 2
    if one_node:
        return local_link(place.gpu)
    if len(hosts) < 2 and not place.node_gpus:
        return None, None
    blocks = len({member // gpus for member in members})
    nodes = max(len(hosts), blocks if len(members) == size else -(-size // gpus), 2)
    return NETWORK, _NETWORK_GBPS * max(size // nodes, 1)
