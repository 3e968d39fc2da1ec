"""Recorded sentences: ``tests/golden/wording`` has one file per test file.

A test asserts data; ``check_wording(result.verdict)`` compares a sentence with the recorded one.
``pytest --bless`` records the current sentences; the diff is reviewed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from traceanalyzer.parsers.registry import formats

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden" / "wording"
BLESS = False  #: set by ``--bless``
#: Folders of one run.
_FOLDER = re.compile(r"[^\s'\"(]*/pytest-of-\w+/pytest-\d+/(?:popen-gw\d+/)?[^/\s:;,)'\"]+")

#: Texts of each test so far, by test file and test.
_now: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))


def check_wording(*texts: object) -> None:
    """Compare texts with those recorded at this point of the running test."""
    file, test = _running()
    for text in texts:
        _now[file][test].append(_stable(text))
        place = len(_now[file][test]) - 1
        if not BLESS:
            recorded = _recorded(file).get(test, [])
            expected = recorded[place] if place < len(recorded) else None
            assert _now[file][test][place] == expected, "if the new text is right: pytest --bless"


@contextlib.contextmanager
def raises_wording(error: type[BaseException] | tuple[type[BaseException], ...]) -> Iterator[Any]:
    """Like ``pytest.raises``, and compare the message with the recorded one."""
    with pytest.raises(error) as caught:
        yield caught
    check_wording(caught.value)


def start_test() -> None:
    """Discard the texts of an earlier run of the same test."""
    file, test = _running()
    _now.get(file, {}).pop(test, None)


def save() -> None:
    """Write the texts of this run; other tests keep theirs."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    folder = os.open(GOLDEN, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)  # pytest-xdist's workers save one after another
    for file, tests in _now.items():
        if not tests:
            continue
        path = GOLDEN / f"{file}.json"
        texts = json.dumps(
            dict(sorted((_read(path) | tests).items())), indent=1, ensure_ascii=False
        )
        path.write_text(texts + "\n", encoding="utf-8")
    os.close(folder)


def _running() -> tuple[str, str]:
    path, _, test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0].partition("::")
    return Path(path).stem, test


def _stable(text: object) -> str:
    string = text.decode() if isinstance(text, bytes) else str(text)
    string = string.encode(errors="backslashreplace").decode()
    shared = os.environ.get("TRACEANALYZER_SHARED", str(ROOT.parent / "shared"))
    string = string.replace(", ".join(one.name for one in formats()), "FORMATS")
    return _FOLDER.sub("TMP", string).replace(str(ROOT), "ROOT").replace(shared, "SHARED")


@cache
def _recorded(file: str) -> dict[str, list[str]]:
    return _read(GOLDEN / f"{file}.json")


def _read(path: Path) -> dict[str, list[str]]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
