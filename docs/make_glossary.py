"""Write the definitions of ``docs/glossary.md`` for HTML pages (``make docs``)."""

from __future__ import annotations

import json
import re
from pathlib import Path

_GLOSSARY = Path(__file__).with_name("glossary.md")
PAGE = Path(__file__).parent.parent / "traceanalyzer/render/glossary.json"

#: Common terms that pages do not link to the glossary.
_PLAIN = """
    annotation baseline check communication compute confidence cost device effect evidence file
    finding gain host info kernel lane leaf operator rank record recording regression segment
    severity significant stack step stream thread threshold verdict
"""


def page() -> str:
    """Return terms and definitions as JSON, without links and emphasis."""
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
