"""Write the table of rules, and the changes that they suggest (``make docs``)."""

from __future__ import annotations

import json
import re
from pathlib import Path

from traceanalyzer.analyzers.registry import in_report
from traceanalyzer.findings.judge import RULES
from traceanalyzer.findings.rule import Rule

PAGE = Path(__file__).with_name("diagnose-rules.md")
#: The change that each rule suggests: one heading for one or two rules.
FIXES = Path(__file__).with_name("fixes.md")
SHIPPED = Path(__file__).parents[1] / "traceanalyzer/render/fixes.json"
_BEGIN, _END = "<!-- begin: make docs -->", "<!-- end: make docs -->"
_PAGES = {"api": "transfers", "memory --oom": "memory", "memory --growth": "memory"}


def table() -> str:
    """Return the table of all rules, with the command that has the details."""
    commands = {entry.name: entry.command for entry in in_report()}
    lines = [
        "| rule | what it looks for | measured | info | warning | critical | more |",
        "|---|---|---|--:|--:|--:|---|",
    ]
    return "\n".join([*lines, *(_row(rule, commands[rule.analysis]) for rule in RULES)])


def anchors() -> dict[str, str]:
    """Return the anchor of the section of each rule in ``fixes.md``."""
    headings = re.findall(r"^### (.+)$", FIXES.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        name: heading.replace("`", "").replace(" ", "-")
        for heading in headings
        for name in re.findall(r"`([\w-]+)`", heading)
    }


def _row(rule: Rule, command: str) -> str:
    levels = (_level(rule, name) for name in ("info", "warning", "critical"))
    page = f"{_PAGES.get(command, command)}.md"
    fix = f"[`{rule.id}`](fixes.md#{anchors()[rule.id]})"
    texts = (fix, rule.looks_for, rule.measure, *levels, f"[`{command}`]({page})")
    return f"| {' | '.join(texts)} |"


def _level(rule: Rule, severity: str) -> str:
    value = {str(name): least for name, least in rule.levels.items()}.get(severity)
    if value is None:
        return ""
    return f"{value:g}" if rule.counts else f"{100 * value:g} %"


def page() -> str:
    """Return the page with the current table."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    return f"{before}{_BEGIN}\n\n{table()}\n\n{_END}{rest.partition(_END)[2]}"


def fixes() -> str:
    """Return the section of each rule in ``fixes.md`` as JSON, for pages and terminals."""
    parts = re.split(r"^##+ (.+)\n", FIXES.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    texts = {
        name: text.strip()
        for heading, text in zip(parts[::2], parts[1::2], strict=True)
        for name in re.findall(r"`([\w-]+)`", heading)
    }
    return json.dumps(texts, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def pages() -> dict[Path, str]:
    """Return the page of rules, and the changes that they suggest, as a file of the package."""
    return {PAGE: page(), SHIPPED: fixes()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
