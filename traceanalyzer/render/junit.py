"""JUnit XML, which CI systems show as tests."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

#: What XML 1.0 cannot contain.
_ILLEGAL = "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"


@dataclass(frozen=True)
class Case:
    """One test.

    Attributes:
        name: what is tested.
        failure: why it failed; empty if it did not.
        skipped: why it was skipped; empty if it was not.
        output: details of a test that did not fail; empty without any.
    """

    name: str
    failure: str = ""
    skipped: str = ""
    output: str = ""


def junit(suite: str, cases: Sequence[Case]) -> bytes:
    """Return a document with one test suite.

    Args:
        suite: its name, which is also the class of its tests.
        cases: its tests.
    """
    failures = str(sum(bool(case.failure) for case in cases))
    skipped = str(sum(bool(case.skipped) for case in cases))
    counts = {"tests": str(len(cases)), "failures": failures, "errors": "0", "skipped": skipped}
    root = ET.Element("testsuites", counts)
    element = ET.SubElement(root, "testsuite", {"name": _legal(suite), **counts})
    for case in cases:
        name = {"classname": _legal(suite), "name": _legal(case.name), "time": "0"}
        test = ET.SubElement(element, "testcase", name)
        for kind in ("failure", "skipped"):
            if message := getattr(case, kind):
                ET.SubElement(test, kind, {"message": _legal(message)}).text = _legal(message)
        if case.output:
            ET.SubElement(test, "system-out").text = _legal(case.output)
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'.encode()


def _legal(text: str) -> str:
    return re.sub(_ILLEGAL, "\N{REPLACEMENT CHARACTER}", text)
