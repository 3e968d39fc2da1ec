"""Sentences that tests do not spell out: recorded in ``tests/golden/wording``, a file a test file.

A test asserts data; ``check_wording(result.verdict)`` also compares the sentence with the one that
was recorded for the test. ``pytest --bless`` records what is said now; the difference is reviewed.
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
    """Compare texts with those recorded for this place of the running test."""
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
    """``pytest.raises`` of an error whose text is recorded."""
    with pytest.raises(error) as caught:
        yield caught
    check_wording(caught.value)


def start_test() -> None:
    """Forget what an earlier run of the same test said."""
    file, test = _running()
    _now.get(file, {}).pop(test, None)


def save() -> None:
    """Write what the tests of this run said; other tests keep their texts."""
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
    words = text.decode() if isinstance(text, bytes) else str(text)
    words = words.encode(errors="backslashreplace").decode()
    shared = os.environ.get("TRACEANALYZER_SHARED", str(ROOT.parent / "shared"))
    return _FOLDER.sub("TMP", words).replace(str(ROOT), "ROOT").replace(shared, "SHARED")


@cache
def _recorded(file: str) -> dict[str, list[str]]:
    return _read(GOLDEN / f"{file}.json")


def _read(path: Path) -> dict[str, list[str]]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
