"""Options of analyses as options of commands: what is parsed, what is refused."""

from dataclasses import dataclass
from typing import Any

import click
import pytest
from click.testing import CliRunner

from traceanalyzer.analyzers.base import AnalyzerOptions, option
from traceanalyzer.cli.commands import analyzer_options


@dataclass(frozen=True)
class Postponed(AnalyzerOptions):
    """Annotations are texts where their evaluation is postponed."""

    stream: "int | None" = option(None, help="Only this stream.")


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """One option of each type."""

    stream: int | None = option(None, help="Only this stream.")
    device: int | None = option(None, help="Only this device.", minimum=0)
    factor: float = option(1.5, help="How much longer.", above=1)
    share: float | None = option(None, help="A part.")
    pattern: tuple[str, ...] = option((), help="Names.")
    gap_ns: int = option(10_000, help="Shorter ones are not counted.", flag="--gap", unit="time")
    flag: bool = option(default=False, help="Yes or no.")


def given(*arguments: str, of: type[AnalyzerOptions] = Options) -> dict[str, Any]:
    found: dict[str, Any] = {}
    command = click.command()(analyzer_options(of)(lambda **options: found.update(options)))
    done = CliRunner().invoke(command, list(arguments), catch_exceptions=False)
    return found if done.exit_code == 0 else {"refused": done.exit_code}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--stream", "7"), {"stream": 7}),
        (("--stream", "7.5"), {"refused": 2}),
        (("--stream", "inf"), {"refused": 2}),
        (("--device", "0"), {"device": 0}),
        (("--device", "-1"), {"refused": 2}),
        (("--factor", "2"), {"factor": 2.0}),
        (("--share", "0.5"), {"share": 0.5}),
        (("--pattern", "a", "--pattern", "b"), {"pattern": ("a", "b")}),
        (("--gap", "5us"), {"gap_ns": 5_000}),
        (("--flag",), {"flag": True}),
    ],
    ids=" ".join,
)
def test_values_are_parsed_by_the_type_of_the_field(arguments, expected):
    assert expected.items() <= given(*arguments).items()


def test_annotations_may_be_texts():
    assert given("--stream", "7", of=Postponed) == {"stream": 7}


def test_defaults_are_those_of_the_fields():
    asked = given()
    assert (asked["stream"], asked["factor"], asked["flag"]) == (None, 1.5, False)
