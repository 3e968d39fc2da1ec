"""The profile of DeepSpeed's flops profiler: figures of the model, and its tree of modules.

The text changed in 2021 and 2023 (width of labels, ``params per gpu``, scaled figures, ``=`` in
place of ``,``); labels are compared without case, figures have their own units.
"""

import re

from traceanalyzer.parsers.printed_text.lines import Line, Rows, count, nanoseconds, number

#: The model and its modules; the largest classes by depth.
FORM, BY_CLASS = "flops_profile", "flops_by_class"

_BEGIN = re.compile(r"(?<!-)-{5,}+ ?DeepSpeed Flops Profiler ?-{5,}+\s*+$")
_STEP = re.compile(r"\s*Profile Summary at step (\d{1,15}):")
_LABEL = re.compile(r"\s*([A-Za-z][^:]{2,80}):\s+(\S.*)$")
_END = re.compile(r"\s*-{70,}\s*$")
_DEPTH = re.compile(r"\s*depth (\d{1,4}):\s*$")
_CLASSES = re.compile(r"\s*(params|MACs|fwd latency)\s*- \{(.*)\}\s*$")
_PAIR = re.compile(r"'([^']{1,200})': '([^']{1,40})'")
_MODULE = re.compile(r"( *+)(?:\(([^()]{1,200})\): )?(\w[\w. ]{0,199})\((.*)$")
_FIGURES = re.compile(
    r"\s*(?P<params>[\d.]+ ?[kKMGTP]?)(?: =|,) [\d.]+% Params, "
    r"(?P<macs>[\d.]+ ?\w?MACs)(?: =|,) [\d.]+% MACs, "
    r"(?P<latency>[\d.]+ ?\w{1,2})(?: =|,) [\d.]+% latency, (?P<flops>[\d.]+ ?\w?FLOPS)\b"
)
_FACTOR = re.compile(r"FLOPS per GPU = (\d(?:\.\d+)?) \* fwd", re.IGNORECASE)
#: Metric by label; how a value is read follows from the metric.
_LABELS = {
    "world size": "world_size",
    "data parallel size": "data_parallel",
    "model parallel size": "model_parallel",
    "model paralel size": "model_parallel",
    "batch size per gpu": "batch_size",
    "params per gpu": "params",
    "params of model": "model_params",
    "non-expert params of model": "non_expert_params",
    "expert params of model": "expert_params",
    "fwd macs per gpu": "fwd_macs",
    "fwd flops per gpu": "fwd_flops",
    "fwd latency": "fwd_latency_ns",
    "fwd flops per gpu = fwd flops per gpu / fwd latency": "fwd_flops_per_s",
    "bwd latency": "bwd_latency_ns",
    "step latency": "step_latency_ns",
    "iter latency": "iter_latency_ns",
    "samples/second": "samples_per_s",
}
_BY_CLASS = {"params": "params", "MACs": "fwd_macs", "fwd latency": "fwd_latency_ns"}
_DEEPEST = 200
_MOST_OTHERS = 200


class Reader:
    """Reads the profiles of one process."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.is_open = False
        self._start(0)

    def _start(self, block: int) -> None:
        self._block, self._row, self._others = block, 0, 0
        self._depth: int | None = None
        # indentation, path and class of the modules around the next line; line of each
        self._modules: list[tuple[int, str, str]] = []
        self._in_tree = False

    def feed(self, line: Line) -> bool:
        """Read a line; return whether it belongs to a profile."""
        if "DeepSpeed Flops Profiler" in line.text and _BEGIN.search(line.text):
            self.close(line)
            self._start(self.rows.block())
            self.is_open = True
            return True
        return self.is_open and self._inside(line)

    def close(self, line: Line) -> None:
        """End the text: a profile without its last rule is truncated."""
        if self.is_open:
            self.rows.note("data_loss", "truncated-table", line)
        self.is_open = False

    def _inside(self, line: Line) -> bool:
        text = line.text
        if not text.strip():
            return True
        if _END.match(text):
            self.is_open = False
            return True
        if self._in_tree:
            return self._tree(line) or self._other(line)
        return self._summary(line) or self._by_class(line) or self._tree(line) or self._skip(line)

    def _skip(self, line: Line) -> bool:
        """Pass over a legend, or a line of another process, before the tree."""
        self._others += 1
        if self._others > _MOST_OTHERS:
            self.close(line)
        return False

    def _other(self, line: Line) -> bool:
        self.rows.note("notice", "line-in-table", line)
        return self._skip(line)

    # --- figures of the model --------------------------------------------------------------------

    def _summary(self, line: Line) -> bool:
        if match := _STEP.match(line.text):
            self.rows.add(FORM, (self._block, None), line, {"step": number(match[1])})
            return True
        match = _LABEL.match(line.text)
        if match is None:
            return False
        label, value = match[1].strip(), match[2].strip()
        lower = label.lower()
        metric = _LABELS.get(lower) or _LABELS.get(lower.partition(" = ")[0])
        if label.startswith("fwd FLOPS per"):
            metric = "fwd_flops_per_s"
        elif label.startswith(("FLOPS per", "bwd FLOPS", "fwd+bwd FLOPS")):
            metric = "flops_per_s" if label.startswith("FLOPS") else None
        values = {} if metric is None else {metric: _value(metric, value)}
        factor = _FACTOR.match(label)
        if factor:
            values["flops_factor"] = number(factor[1])
        if metric is not None and values[metric] is None:
            self.rows.note("data_loss", "bad-row", line)
        self.rows.add(FORM, (self._block, None), line, values)
        return bool(values) or "FLOPS" in label or "flops" in label

    # --- largest classes by depth ----------------------------------------------------------------

    def _by_class(self, line: Line) -> bool:
        if match := _DEPTH.match(line.text):
            self._depth = int(match[1])
            return True
        match = _CLASSES.match(line.text)
        if match is None or self._depth is None:
            return False
        metric = _BY_CLASS[match[1]]
        for name, value in _PAIR.findall(match[2]):
            values = {"depth": float(self._depth), metric: _value(metric, value)}
            self.rows.add(BY_CLASS, (self._block, self._row), line, values, name=name)
            self._row += 1
        return True

    # --- tree of modules -------------------------------------------------------------------------

    def _tree(self, line: Line) -> bool:
        text = line.text
        if self._modules and (figures := _FIGURES.match(text)):
            indent = len(text) - len(text.lstrip(" "))
            if indent > self._modules[-1][0]:
                self._add(line, self._modules[-1], figures)
                return True
        if self._modules and text.strip() == ")":
            self._leave(len(text) - len(text.lstrip(" ")))
            return True
        match = _MODULE.match(text)
        if match is None or not (match[2] or not self._modules):
            return False
        rest = match[4]
        figures = _FIGURES.match(rest)
        if not figures and rest.strip() and not (self._in_tree and rest.endswith(")")):
            return False
        module = self._enter(len(match[1]), match[2] or "", match[3])
        if not figures and rest.strip() == "":
            self._in_tree = True
            return True
        if figures:
            self._in_tree = True
            self._add(line, module, figures)
        self._leave(module[0])
        return True

    def _enter(self, indent: int, attribute: str, kind: str) -> tuple[int, str, str]:
        self._leave(indent)
        above = self._modules[-1][1] if self._modules else ""
        path = f"{above}.{attribute}" if above else attribute
        module = (indent, path, kind)
        if len(self._modules) < _DEEPEST:
            self._modules.append(module)
        return module

    def _leave(self, indent: int) -> None:
        while self._modules and self._modules[-1][0] >= indent:
            self._modules.pop()

    def _add(self, line: Line, module: tuple[int, str, str], figures: re.Match[str]) -> None:
        _, path, kind = module
        values: dict[str, float | str | None] = {
            "class": kind,
            "depth": float(path.count(".") + 1 if path else 0),
            "params": count(figures["params"]),
            "fwd_macs": count(figures["macs"], "MACs"),
            "fwd_latency_ns": nanoseconds(figures["latency"]),
            "fwd_flops_per_s": count(figures["flops"], "FLOPS"),
        }
        self.rows.add(FORM, (self._block, self._row), line, values, name=path or kind)
        self._row += 1


def _value(metric: str, text: str) -> float | None:
    if metric.endswith("_ns"):
        return nanoseconds(text)
    if metric.endswith("_flops_per_s") or metric == "flops_per_s":
        return count(text, "FLOPS")
    return count(text, "MACs") if metric == "fwd_macs" else count(text)
