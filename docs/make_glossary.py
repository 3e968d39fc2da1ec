"""Writes the definitions of ``docs/glossary.md`` for pages; ``make docs`` runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path

_GLOSSARY = Path(__file__).with_name("glossary.md")
PAGE = Path(__file__).parent.parent / "traceanalyzer/render/glossary.json"

#: Terms that mean the same to everybody: a link at each of them would only distract.
_PLAIN = """
    annotation baseline check communication compute confidence cost device effect evidence file
    finding host info kernel lane operator rank record recording regression severity significant
    stack step stream thread verdict
"""


def page() -> str:
    """Term and definition, without links and emphasis, as JSON."""
    terms = {}
    for section in _GLOSSARY.read_text().split("\n### ")[1:]:
        term, text = section.split("\n", 1)
        text = re.sub(r"\s*\[[^\]]*\]\([^)]*\)\.?\s*$", "", text.strip())
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
        if term not in _PLAIN.split():
            terms[term] = " ".join(re.sub(r"[`*]", "", text).split())
    return json.dumps(terms, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
