"""Check identifiers and user-facing text for words and phrases that the style guide bans.

    python -m benchmarks.language

Prints FILE:LINE and the word or phrase, and exits with 1 if there is any. Part of ``make check``.
CONTRIBUTING.md explains the style.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_CODE = ("traceanalyzer", "tests", "fixtures", "benchmarks", "docs")

#: No part of an identifier, between underscores.
_BANNED = {
    *("beside", "held", "made", "own", "said", "seen", "shown", "told", "ways", "whose", "words"),
}
#: Terms of the glossary that contain one of them.
_TERMS = re.compile(r"own_code")

#: Patterns that sentences do not match, each with what to write instead.
_PHRASES = {
    r"\bwhose (?:it|code)\b": "which package owns it",
    r"(?<!there )\b(?:is|are|was|were) none\b": "a positive sentence",
    r"(?<!there )(?<!There )\bis no (?!longer|more)[a-z]+": "is not a ...",
    r"\bcannot be told\b|\btell(?:s|ing)? apart\b|\btold apart\b": "distinguish; group by",
    r"\b(?:heaviest|most|time) by itself\b": "self time",
    r"\blate ranks?\b|\b[Rr]ank \S+ is late\b|\bwho is late\b": "straggler",
    r"\b[Hh]ow sure\b": "confidence",
    r"\bTo try:": "Try:",
    r"\bgravest\b": "severity",
    r"\bpassed over\b": "ignored",
    r"\bcut off\b": "truncated",
    r"\b(?:file|trace) tells\b|\btells? no\b": "contains; not recorded",
    r"\bwith what it calls\b": "total time",
    r"\bholds? it up\b|\bheld up\b": "blocks",
}


def main() -> int:
    """Print all matches; return 1 if there are any."""
    problems = [*_identifiers(), *_texts()]
    for problem in problems:
        print(problem)
    if problems:
        print(f"{len(problems)} words or phrases to replace; CONTRIBUTING.md explains the style.")
    return int(bool(problems))


def _identifiers() -> Iterator[str]:
    for path in _sources(*_CODE):
        for line, name in sorted(set(_names(ast.parse(path.read_text())))):
            parts = _TERMS.sub("", name.lower()).split("_")
            for word in _BANNED.intersection(parts):
                yield f"{path.relative_to(_ROOT)}:{line}: identifier {name}: {word}"


def _names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of everything that a module defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.value.lineno, node.arg


def _texts() -> Iterator[str]:
    for path, line, text in (*_strings(), *_prose()):
        for pattern, better in _PHRASES.items():
            for match in re.finditer(pattern, text):
                at = line + text.count("\n", 0, match.start())
                yield f"{path.relative_to(_ROOT)}:{at}: {match[0]!r} (write: {better})"


def _strings() -> Iterator[tuple[Path, int, str]]:
    """Every string of the package with a space, docstrings among them, and its files of texts."""
    for path in _sources("traceanalyzer"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                yield path, node.lineno, node.value
    for path in sorted((_ROOT / "traceanalyzer").rglob("*.toml")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if not line.startswith("begins = "):  # a regular expression
                yield path, number, line


def _prose() -> Iterator[tuple[Path, int, str]]:
    pages = [path for folder in ("docs", "benchmarks") for path in (_ROOT / folder).glob("*.md")]
    for path in (_ROOT / "README.md", _ROOT / "CONTRIBUTING.md", *pages):
        yield path, 1, path.read_text()


def _sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (_ROOT / folder).rglob("*.py"))


if __name__ == "__main__":
    sys.exit(main())
