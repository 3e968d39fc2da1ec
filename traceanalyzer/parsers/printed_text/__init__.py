"""Texts that PyTorch and DeepSpeed print, tables without a timeline, and errors in job logs.

One module reads one form of text, ``reader`` passes the lines to them; ``lines`` removes what
launchers and loggers write before a line, and parses numbers with units. Each process of a log is
read on its own, so that tables of several ranks may be interleaved line by line. Rows become the
table ``aggregates``.

Specification: <https://github.com/pytorch/pytorch/blob/main/torch/autograd/profiler_util.py>
"""

import re
from itertools import chain
from pathlib import PurePath

from traceanalyzer.parsers.contract import Format, on_use
from traceanalyzer.parsers.source import Source
from traceanalyzer.vocabulary import PRINTED_TEXT

#: What identifies each form, and the log of a job that runs DeepSpeed.
_MARKS = re.compile(
    rb"(?:"
    rb"\bName(?:[ \t|]{2,200}+|[\t|])(?:Overload Name[ \t|]{1,200}+)?Self CPU (?:total )?%"
    rb"|\| {5,40}+PyTorch \w{2,15} memory summary, device ID \d"
    rb"|^[ \t]*+Memory requirement: [\d.]{1,20} MB"
    rb"|\bTried to allocate \d[\d.]{0,15} \w{3,5}[ .(][^\n]{1,60} total capacity"
    rb"|(?<!-)-{5,}+ ?DeepSpeed Flops Profiler ?-{5}"
    rb"|\btime \(ms\) \| \w[^\n:|]{0,80}: \S"
    rb"|\btimes? across ranks \(ms\):"
    rb"|\| elapsed time per iteration \(ms\): \d"
    rb"|/global_step=\d{1,15}, RunningAvgSamplesPerSec="
    rb"|\bMA [\d.]{1,15} GB {1,20}Max_MA [\d.]{1,15} GB"
    rb"|\bcomm op: [\w.\-]{1,80} \|"
    rb"|\bComm\. Op[ \t]{2,40}Message Size[ \t]{2,40}Count"
    rb"|\bstep: {1,9}\d{1,15} [^\n]{1,160}?\b[tw]ps: \d"
    rb"|\biter \d{1,15}\b[: |][^\n]{1,160}?\btime:? [\d.]{1,20} ?m?s\b"
    rb"|'(?:train|eval)\w{0,80}?_runtime': '?\d"
    rb"|\[Rank \d{1,6}\] DeepSpeed info: version="
    rb")",
    re.MULTILINE,
)
#: The longest line that is not cut between two blocks of a file.
_LONGEST = 1 << 16
_LOGS = re.compile(r"|\.(?:log|out|err|txt|[oe]\d+)", re.IGNORECASE)
#: JSON of profilers may contain these texts.
_JSON = re.compile(rb'\s*+(?:\{\s*+["}]|\[\s*+(?!\[\d{1,3}m)[\[{"])')  # [32m is a colour


def is_log(path: str) -> bool:
    """Whether a file may be a log, by its name."""
    name = path.lower().removesuffix(".gz").removesuffix(".zst")
    return _LOGS.fullmatch(PurePath(name).suffix) is not None


def sniff(head: bytes, path: str) -> bool:
    """Whether this is text with one of the forms, or a log with events of a job."""
    if b"\0" in head or _JSON.match(head):
        return False
    return _has_form(head, path)


def _has_form(text: bytes, path: str) -> bool:
    return _MARKS.search(text) is not None or (is_log(path) and _has_event(text))


#: A message of NCCL that is wrapped.
_WRAPPED = re.compile(rb"timeout:[ \t]{0,9}\r?\n(?=[ \t]{0,9}WorkNCCL\()")


def _has_event(text: bytes) -> bool:
    """Whether a line of a text is read as an event of a job, or of an engine."""
    from traceanalyzer.parsers.printed_text import job_events

    if not any(mark.encode() in text for mark in job_events.marks()):
        return False
    text = _WRAPPED.sub(b"timeout: ", text)
    lines = (one for one in text.splitlines() if len(one) <= _LONGEST)  # as in lines.Lines
    return any(job_events.has_event(line.decode(errors="replace")) for line in lines)


def is_far_in(source: Source) -> bool:
    """Whether a log has a form or an event after its beginning, such as the error at its end.

    Raises:
        InputError: the file cannot be read or decompressed.
    """
    head, rest = source.head(), b""
    if not is_log(source.path) or b"\0" in head or head.lstrip()[:1] in (b"{", b"<"):
        return False
    for block in chain(source.blocks(), (b"\n",)):
        text = rest + block
        end = text.rfind(b"\n", -_LONGEST) + 1 or len(text)  # a number in half is another one
        rest = text[end:]
        if _has_form(text[:end], source.path):  # JSON in the middle of a log is a line of it
            return True
    return False


FORMAT: Format = Format(
    name=PRINTED_TEXT,
    suffixes=(".dat", ".log", ".out", ".txt"),
    description="texts of PyTorch (key_averages, memory_summary), DeepSpeed, others; logs of jobs",
    sniff=sniff,
    parse=on_use("traceanalyzer.parsers.printed_text.reader:parse"),
    priority=43,
)
