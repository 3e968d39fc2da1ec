"""Lines that training programs log: DeepSpeed (timers, throughput, memory, communication), others.

Megatron-LM, TorchTitan, nanoGPT, LitGPT and the Trainer of Hugging Face print less. TorchTitan
prints no time of a step: it is that between two of its lines, divided by the steps between.
"""

import re

from traceanalyzer.parsers.printed_text.lines import Line, Rows, nanoseconds, number, size

TIMERS, THROUGHPUT, MEMORY, CALLS, SUMMARY, _OTHERS = (
    "timers", "throughput", "memory_usage", "comm_log", "comm_summary", "of other steps"
)  # fmt: skip
_TIMERS = re.compile(
    r"\btime \(ms\) \| (.+)$"
    r"|\| (elapsed time per iteration \(ms\): [\d.]{1,20})(?:/[\d.]{1,20})? \|"  # now/mean
)
#: A timer of Megatron-LM's block "time across ranks (ms)": the largest of all ranks.
_ACROSS_RANKS = re.compile(r" *([a-z][\w/-]*) \.{2,}: (\([\d.]+, )?([\d.]{1,20})(?(2)\))\s*$")
#: Those that are not within an iteration end like this.
_BETWEEN = ("evaluate", "-checkpoint", "setup")
_ITERATION = re.compile(r"\biteration +(\d{1,15})/")
#: What DeepSpeed's pipeline engine prints of its mean step, after the sums of its timers.
_OF_PIPELINE = re.compile(
    r"^steps: (?P<iteration>\d{1,15}) loss: \S{1,40} (?P<name>iter time \(s\)): "
    r"(?P<time>[\d.]{1,20}) samples/sec: (?P<samples_per_s>[\d.]{1,20})"
)
_RATE = re.compile(r"\(TFLOP/s/GPU\): ([\d.]{1,20})[ /]")
_TIMER = re.compile(r"([^\s:|][^:|]{0,80}): (-?\d+(?:\.\d+)?)\s*$")
_TITAN = re.compile(
    r"\bstep: {1,9}(?P<step>\d{1,15}) .{1,160}?\bmemory: {1,9}(?P<memory>[\d.]{1,15})GiB\(.{1,9}?\)"
    r" {1,9}[tw]ps: (?P<tokens>[\d,.]{1,20})(?: {1,9}tflops: (?P<tflops>[\d,.]{1,20}))?"
    r"(?: {1,9}mfu: (?P<mfu>[\d.]{1,9})%)?"
)
_NANO = re.compile(
    r"\biter (?P<step>\d{1,15})\b(?=[: |]).{1,160}?\btime:? (?P<time>[\d.]{1,20} ?m?s)\b"
    r"(?:, mfu (?P<mfu>[\d.]{1,9})%)?"
)
_TRAINER = re.compile(
    r"'(train|eval)\w{0,80}?_runtime': '?([\d.]{1,20})"
    r"(?:'?, 'train_samples_per_second': '?([\d.]{1,20}))?"
)
_THROUGHPUT = re.compile(
    r"epoch=\d+/micro_step=(?P<micro_step>\d{1,15})/global_step=(?P<global_step>\d{1,15}),"
    r" RunningAvgSamplesPerSec=(?P<mean_samples_per_s>[\d.eE+-]{1,30}),"
    r" CurrSamplesPerSec=(?P<samples_per_s>[\d.eE+-]{1,30})"
    r"(?:, MemAllocated=(?P<allocated>[\d.]{1,15})GB, MaxMemAllocated=(?P<peak>[\d.]{1,15})GB)?"
)
_MEMORY = re.compile(
    r"\bMA (?P<allocated>[\d.]{1,15}) GB\s+Max_MA (?P<peak>[\d.]{1,15}) GB\s+"
    r"CA (?P<reserved>[\d.]{1,15}) GB\s+Max_CA (?P<reserved_peak>[\d.]{1,15}) GB"
)
_OF_ITERATION = re.compile(
    r"\(?(?P<name>after \d{1,15} iterations)\)? memory \(MB\)"
    r" \| allocated: (?P<allocated>[\d.]{1,30})"
    r" \| max allocated: (?P<peak>[\d.]{1,30}) \| (?:cached|reserved): (?P<reserved>[\d.]{1,30})"
    r" \| max (?:cached|reserved): (?P<reserved_peak>[\d.]{1,30})"
)
_HOST = re.compile(r"CPU Virtual Memory:\s+used = ([\d.]{1,15}) GB, percent = ([\d.]{1,8})%")
#: End of what a logger writes before a message; until 2025-11 DeepSpeed logged, now it prints.
_LOGGED = ":see_memory_usage] "
_LONGEST = 200
_CALL = re.compile(
    r"comm op: (?P<op>[\w.\-]{1,80}) \| (?:\[Caller Func: [^|]{0,200}\] \| )?"
    r"time \(ms\): (?P<time>-?[\d.]{1,20}) \| msg size: (?P<size>[\d.]{1,20} ?[KMGT]?B) \| "
    r"algbw \(Gbps\): (?P<algbw>-?[\d.]{1,20})\s+\| busbw \(Gbps\): (?P<busbw>-?[\d.]{1,20})"
    r"(?P<rest>.?)"
)
_HEADER = re.compile(r"\bComm\. Op\s{2,}Message Size\s{2,}Count\s{2,}")
_OP = re.compile(r"\s*([a-zA-Z_]\w{2,60})(?: \| \[Caller Func: [^|]{0,200}\])?\s*$")
_SIZES = re.compile(r"\s*(\d+(?:\.\d+)? ?[KMGT]?B)((?:\s+-?\d+(?:\.\d+)?){3,6})\s*$")
#: Metrics of the columns after the size, and the factor to ns or bytes per second x 10^-9.
_COLUMNS = {
    "Count": "n",
    "Total Latency(ms)": "total_ns",
    "Avg Latency(ms)": "mean_ns",
    "tput_avg (Gbps)": "algbw_gbit_per_s",
    "busbw_avg (Gbps)": "busbw_gbit_per_s",
    "Total comm lat(ms)": "comm_ns",
    "Total straggler(ms)": "straggler_ns",
    "Avg comm lat(ms)": "mean_comm_ns",
    "Avg straggler(ms)": "mean_straggler_ns",
}
#: Lines of other kinds between two lines of a summary, after which it has ended.
_MOST_OTHERS = 50


class Reader:
    """Reads the lines of one process."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._blocks: dict[str, int] = {}
        self._rows: dict[str, int] = {}
        self._before, self._message = "", ""
        self._usage: tuple[tuple[int, int | None], str | None] | None = None
        self._iteration: tuple[int, int] | None = None
        self._are_sums = False
        self._columns: list[str] = []
        self._step: tuple[int, int] | None = None
        self._op: str | None = None
        self._since_size = 0

    @property
    def is_open(self) -> bool:
        """Whether the next line may belong to a summary of communication."""
        return bool(self._columns)

    def feed(self, line: Line) -> bool:
        """Read a line; return whether it is one of DeepSpeed's."""
        return (
            self._timers(line)
            or self._across_ranks(line)
            or self._pipeline(line)
            or self._throughput(line)
            or self._memory(line)
            or self._call(line)
            or self._summary(line)
            or self._of_others(line)
        )

    def remember(self, line: Line) -> None:
        """Remember a line, which may be the message above a line about memory."""
        if _LOGGED in line.text:
            self._message = line.text.partition(_LOGGED)[2].strip()[:_LONGEST]
        if line.text.strip():
            self._before = line.text.strip()[:_LONGEST]

    def _place(self, form: str) -> tuple[int, int]:
        """Return block and number of the next row of a series."""
        block = self._blocks.setdefault(form, self.rows.blocks)
        self.rows.blocks = max(self.rows.blocks, block + 1)
        self._rows[form] = self._rows.get(form, -1) + 1
        return block, self._rows[form]

    def _timers(self, line: Line) -> bool:
        match = _TIMERS.search(line.text)
        if match is None or "comm op:" in line.text:
            return False
        items = (match[1] or match[2]).split(" | ")
        if not line.complete:
            items = items[: None if match[2] else -1]
            self.rows.note("data_loss", "truncated-line", line)
        # Megatron-LM prints the timers of an iteration in the line after it
        self._are_sums |= (match[1] or "").startswith(("batch_input:", "pipe_"))
        apart = self._are_sums or line.text.startswith("time (ms)")
        series = _OTHERS if apart and not match[2] else TIMERS
        place = (None if match[2] else self._iteration) or self._place(series)
        self._iteration = place if match[2] else None
        if match[2]:
            pairs = ("iteration", _ITERATION), ("tflops", _RATE)
            matched = {name: pattern.search(line.text) for name, pattern in pairs}
            values = {name: number(one[1]) for name, one in matched.items() if one}
            self.rows.add(TIMERS, place, line, values)
        for item in map(_TIMER.match, items):
            if item is None:
                self.rows.note("data_loss", "bad-row", line)
                continue
            time = nanoseconds(f"{item[2]} ms")
            self.rows.add(TIMERS, place, line, {"time_ns": time}, name=item[1])
        return True

    def _across_ranks(self, line: Line) -> bool:
        match = _ACROSS_RANKS.match(line.text)
        if match is None or not line.complete:
            return False
        place = None if match[1].endswith(_BETWEEN) else self._iteration
        time = {"time_ns": nanoseconds(f"{match[3]} ms")}
        self.rows.add(TIMERS, place or self._place(_OTHERS), line, time, name=match[1])
        return True

    def _pipeline(self, line: Line) -> bool:
        if (match := _OF_PIPELINE.match(line.text)) is None:
            return False
        place, step = self._place(TIMERS), number(match["iteration"])
        self.rows.add(TIMERS, place, line, {"iteration": step})
        time = {"time_ns": nanoseconds(f"{match['time']} s")}
        self.rows.add(TIMERS, place, line, time, name=match["name"])
        speed = {"global_step": step, "samples_per_s": number(match["samples_per_s"])}
        self.rows.add(THROUGHPUT, self._place(THROUGHPUT), line, speed)
        return True

    def _of_others(self, line: Line) -> bool:
        """Read a line of TorchTitan, nanoGPT, LitGPT or Hugging Face's Trainer."""
        if match := _TRAINER.search(line.text):
            values = {"time_ns": nanoseconds(f"{match[2]} s")}
            self.rows.add(TIMERS, self._place(TIMERS), line, values, name=f"{match[1]}_runtime")
            values = {"samples_per_s": number(match[3] or "")}
            self.rows.add(THROUGHPUT, self._place(THROUGHPUT), line, values)
            return True
        if (match := _TITAN.search(line.text) or _NANO.search(line.text)) is None:
            return False
        texts = {name: (text or "").replace(",", "") for name, text in match.groupdict().items()}
        place, step, mfu = self._place(TIMERS), int(texts["step"]), number(f"{texts['mfu']}e-2")
        values = {"iteration": step, "tflops": number(texts.get("tflops", "")), "mfu_frac": mfu}
        self.rows.add(TIMERS, place, line, values)
        time = nanoseconds(texts["time"]) if "time" in texts else self._since(step, line.printed_ns)
        self.rows.add(TIMERS, place, line, {"time_ns": time}, name="step time")
        if "tokens" in texts:
            values = {"tokens_per_s": number(texts["tokens"]), "global_step": step}
            self.rows.add(THROUGHPUT, self._place(THROUGHPUT), line, values)
            memory = {"reserved_peak_bytes": size(f"{texts['memory']} GB")}
            self.rows.add(MEMORY, self._place(MEMORY), line, memory, name=f"step {step}")
        return True

    def _since(self, step: int, now_ns: int | None) -> float | None:
        """Return the time per step since the last line; None if that is of this step, too."""
        last, then_ns = self._step or (step, 0)
        if now_ns is None or (step == last and then_ns):
            return None
        self._step = step, now_ns
        is_known = step > last and now_ns > then_ns
        return float(round((now_ns - then_ns) / (step - last))) if is_known else None

    def _throughput(self, line: Line) -> bool:
        match = _THROUGHPUT.search(line.text)
        if match is None:
            return False
        names = ("micro_step", "global_step", "mean_samples_per_s", "samples_per_s")
        values = {name: number(match[name]) for name in names}
        for name in ("allocated", "peak"):
            values[f"{name}_bytes"] = size(f"{match[name]} GB")  # None without the figure
        self.rows.add(THROUGHPUT, self._place(THROUGHPUT), line, values)
        return True

    def _memory(self, line: Line) -> bool:
        if (match := _HOST.search(line.text)) and self._usage is not None:
            percent = number(match[2])
            values = {
                "host_used_bytes": size(f"{match[1]} GB"),
                "host_used_frac": None if percent is None else percent / 100,
            }
            place, name = self._usage
            self.rows.add(MEMORY, place, line, values, name=name)
            self._usage = None
            return True
        if match := _OF_ITERATION.search(line.text):
            texts = match.groupdict()
            name = texts.pop("name")
            values = {f"{metric}_bytes": size(f"{mb[:20]} MB") for metric, mb in texts.items()}
            self.rows.add(MEMORY, self._place(MEMORY), line, values, name=name)
            return True
        match = _MEMORY.search(line.text)
        if match is None:
            return False
        values = {f"{name}_bytes": size(f"{text} GB") for name, text in match.groupdict().items()}
        name = (self._message if _LOGGED in line.text else self._before) or None
        self._usage = self._place(MEMORY), name
        self.rows.add(MEMORY, self._usage[0], line, values, name=name)
        return True

    def _call(self, line: Line) -> bool:
        match = _CALL.search(line.text)
        if match is None:
            if "comm op:" not in line.text:
                return False
            self.rows.note("data_loss", "bad-row", line)
            return True
        whole = line.complete or bool(match["rest"])
        values = {
            "total_ns": nanoseconds(f"{match['time']} ms"),
            "message_bytes": size(match["size"]),
            "algbw_gbit_per_s": number(match["algbw"]),
            "busbw_gbit_per_s": number(match["busbw"]) if whole else None,
        }
        self.rows.add(CALLS, self._place(CALLS), line, values, name=match["op"])
        return True

    # --- summary of communication ----------------------------------------------------------------

    def _summary(self, line: Line) -> bool:
        if match := _HEADER.search(line.text):
            headings = re.split(r"\t+|\s{2,}", line.text[match.start() :].strip())[2:]
            self._columns = [_COLUMNS.get(heading, "") for heading in headings]
            self._blocks[SUMMARY] = self.rows.block()
            self._rows[SUMMARY] = -1
            self._op, self._since_size = None, 0
            return True
        if not self._columns:
            return False
        if match := _SIZES.match(line.text):
            return self._sizes(line, match)
        self._since_size += 1
        if self._since_size > _MOST_OTHERS:
            self._columns = []
        if match := _OP.match(line.text):
            self._op = match[1]
            return True
        return False

    def _sizes(self, line: Line, match: re.Match[str]) -> bool:
        cells = match[2].split()
        cut = not line.complete
        if self._op is None or len(cells) != len(self._columns) or cut:
            self.rows.note("data_loss", "truncated-line" if cut else "bad-row", line)
            return True
        self._since_size = 0
        values: dict[str, float | str | None] = {"message_bytes": size(match[1])}
        for metric, cell in zip(self._columns, cells, strict=True):
            if metric:
                is_time = metric.endswith("_ns")
                values[metric] = nanoseconds(f"{cell} ms") if is_time else number(cell)
        self.rows.add(SUMMARY, self._place(SUMMARY), line, values, name=self._op)
        return True
