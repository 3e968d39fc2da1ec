"""Large files of collapsed stacks, made from recordings: the same arguments give the same bytes.

    python -m benchmarks.make_stacks deep RECORDING... -o OUT [--megabytes 300]
    python -m benchmarks.make_stacks shallow -o OUT [--stacks 2000000]

``deep`` repeats the stacks of py-spy recordings, each time with other line numbers from a random
depth on: as deep as real ones, few of them alike, some 37,000 distinct frames. ``shallow`` writes
distinct stacks of three frames.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterator
from pathlib import Path

_LINE = re.compile(r":(\d+)\)$")
#: Line numbers are moved by less than this.
_SHIFTS = 10


def deep(recordings: list[Path], size: int) -> Iterator[str]:
    """Lines of real stacks with changed line numbers, ``size`` bytes in all."""
    rng = random.Random(0)
    lines = [line for path in recordings for line in path.read_text("utf-8").splitlines()]
    stacks = [line.rpartition(" ")[0].split(";") for line in lines]
    stacks = [stack for stack in stacks if len(stack) > 1]
    moved: dict[tuple[str, int], str] = {}
    while size > 0:
        stack = rng.choice(stacks)
        cut, shift = rng.randrange(len(stack)), rng.randrange(_SHIFTS)
        changed = []
        for frame in stack[cut:]:
            text = moved.get((frame, shift))
            if text is None:
                text = moved[frame, shift] = _LINE.sub(
                    lambda match, by=shift: f":{int(match[1]) + by})", frame
                )
            changed.append(text)
        line = f"{';'.join(stack[:cut] + changed)} {rng.randrange(1, 20)}\n"
        size -= len(line.encode())
        yield line


def shallow(stacks: int) -> Iterator[str]:
    """Lines of distinct stacks: three frames, the last one of 20,000."""
    for number in range(stacks):
        low, high = number % 20_000, number // 20_000
        yield f"main (a.py:1);step_{high} (b.py:{high});f{low} (lib/c.py:{low}) {number % 7 + 1}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("shape", choices=("deep", "shallow"))
    parser.add_argument("recordings", nargs="*", type=Path)
    parser.add_argument("-o", "--output", required=True, type=Path)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--stacks", type=int, default=2_000_000)
    options = parser.parse_args()
    if options.shape == "deep" and not options.recordings:
        parser.error("deep needs recordings")
    lines = (
        deep(options.recordings, options.megabytes * 1_000_000)
        if options.shape == "deep"
        else shallow(options.stacks)
    )
    with options.output.open("w", encoding="utf-8", newline="") as file:
        file.writelines(lines)


if __name__ == "__main__":
    main()
