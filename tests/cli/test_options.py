"""Options of analyzers as command-line options: parsing and validation."""

from dataclasses import dataclass
from typing import Any

import click
import pytest
from click.testing import CliRunner
from conftest import ROOT

from traceanalyzer.analyzers.base import AnalyzerOptions, option
from traceanalyzer.cli.commands import analyzer_options
from traceanalyzer.cli.main import status
from traceanalyzer.errors import OptionError
from traceanalyzer.units import parse_ns


@dataclass(frozen=True)
class Postponed(AnalyzerOptions):
    """Options with postponed evaluation of annotations."""

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


def parse(*arguments: str, of: type[AnalyzerOptions] = Options) -> dict[str, Any]:
    values: dict[str, Any] = {}
    command = click.command()(analyzer_options(of)(lambda **options: values.update(options)))
    done = CliRunner().invoke(command, list(arguments), catch_exceptions=False)
    return values if done.exit_code == 0 else {"refused": done.exit_code}


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
def test_value_is_parsed_by_field_type(arguments, expected):
    assert expected.items() <= parse(*arguments).items()


def test_annotations_may_be_strings():
    assert parse("--stream", "7", of=Postponed) == {"stream": 7}


def test_defaults_are_field_defaults():
    values = parse()
    assert (values["stream"], values["factor"], values["flag"]) == (None, 1.5, False)


@pytest.mark.sample(4)
@pytest.mark.parametrize("command", ["report", "comm-outliers", "diagnose", "timeline"])
def test_pages_have_no_folder_of_this_machine(command, tmp_path):
    folder = tmp_path / "private" / "run"
    folder.mkdir(parents=True)
    for rank in (0, 1):
        name = f"rank{rank}.json.gz"
        (folder / name).write_bytes((ROOT / "fixtures" / "nccl_8ranks" / name).read_bytes())
    page = tmp_path / "page.html"
    assert status([command, str(folder), "-o", str(page), "-q"]) == 0
    text = page.read_text()
    assert "private" not in text
    assert str(tmp_path)[:12] not in text
    assert command != "report" or "traceanalyzer gpu-idle run<" in text


def test_durations_need_a_unit() -> None:
    assert [parse_ns(text) for text in ("0", "0.0", "300us", "1.5 s")] == [
        0,
        0,
        300_000,
        1_500_000_000,
    ]
    for text in ("10", "0.3", ".5", "-1"):
        with pytest.raises(OptionError, match="has no unit"):
            parse_ns(text)
