"""Constraints for pip with the lowest versions of pyproject.toml: ``make lowest``."""

import re
import tomllib
from pathlib import Path

PROJECT = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())["project"]


def constraints() -> list[str]:
    """Return ``name==version`` of every dependency, including user extras."""
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["zstd"], *extras["pandas"]]
    return [re.sub(r"^([\w-]+)>=([\d.]+)$", r"\1==\2", one) for one in wanted]


if __name__ == "__main__":
    print("\n".join(constraints()))  # noqa: T201
