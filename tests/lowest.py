"""The lowest versions that pyproject.toml allows, as constraints for pip: ``make lowest``."""

import re
import tomllib
from pathlib import Path

PROJECT = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())["project"]


def constraints() -> list[str]:
    """``name==version`` of every dependency, those of the extras for users included."""
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["zstd"], *extras["pandas"]]
    return [re.sub(r"^([\w-]+)>=([\d.]+)$", r"\1==\2", one) for one in wanted]


if __name__ == "__main__":
    print("\n".join(constraints()))  # noqa: T201
