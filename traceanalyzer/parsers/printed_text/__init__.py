"""Texts that PyTorch and DeepSpeed print: tables without a timeline, in files or in job logs.

One module reads one form of text, ``reader`` passes the lines to them; ``lines`` removes what
launchers and loggers write before a line, and parses numbers with units. Each process of a log is
read on its own, so that tables of several ranks may be interleaved line by line. Rows become the
table ``aggregates``.

Specification: <https://github.com/pytorch/pytorch/blob/main/torch/autograd/profiler_util.py>
"""

import re

from traceanalyzer.parsers.contract import Format, on_use
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
#: JSON of profilers may contain these texts.
_JSON = re.compile(rb'\s*+(?:\{\s*+["}]|\[\s*+(?!\[\d{1,3}m)[\[{"])')  # [32m is a colour


def sniff(head: bytes, path: str) -> bool:  # noqa: ARG001 - a parser's signature
    """Whether this is text with one of the forms, or the log of a job that runs DeepSpeed."""
    if b"\0" in head or _JSON.match(head):
        return False
    return _MARKS.search(head) is not None


FORMAT: Format = Format(
    name=PRINTED_TEXT,
    suffixes=(".dat", ".log", ".out", ".txt"),
    description="texts of PyTorch (key_averages, memory_summary), DeepSpeed, Megatron-LM, others",
    sniff=sniff,
    parse=on_use("traceanalyzer.parsers.printed_text.reader:parse"),
    priority=43,
)
