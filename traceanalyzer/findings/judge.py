"""All rules with their thresholds, applied to the results, and the time budget of the devices."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import get_args

import polars as pl

from traceanalyzer import vocabulary
from traceanalyzer.analyzers.base import Examination, result_of
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.common import soundness
from traceanalyzer.analyzers.common.device_work import COMMUNICATION
from traceanalyzer.analyzers.common.gpu_api import in_hip
from traceanalyzer.analyzers.common.step_marks import INFERRED_STEPS
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.analyzers.info.compute import Info
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.analyzers.memory.result import Memory
from traceanalyzer.analyzers.overlap.result import Overlap
from traceanalyzer.analyzers.py_spy_report.result import LeafPaths
from traceanalyzer.analyzers.registry import REPLAY
from traceanalyzer.analyzers.timeline.summary import summary
from traceanalyzer.drawings import Lanes
from traceanalyzer.errors import OptionError
from traceanalyzer.findings import (
    busy,
    communication,
    copies,
    gains,
    hardware,
    heavy_kernels,
    idle,
    samples,
    work,
)
from traceanalyzer.findings.device_time import (
    BUBBLE,
    COPIES,
    EXPOSED,
    LINK,
    OUTLIER,
    REPEATED,
    SLOW,
    DeviceTime,
)
from traceanalyzer.findings.program import described, peak_memory
from traceanalyzer.findings.result import (
    BUSY,
    DIFFERENT_JOBS,
    EXPOSED_COMMUNICATION,
    EXPOSED_COPIES,
    FAILED,
    IDLE,
    OF_BUSY,
    OTHER,
    PASSED,
    SKIPPED,
    WAIT,
    Diagnosis,
)
from traceanalyzer.findings.rule import (
    IDLE_RULES,
    MUCH_LEFT,
    RULE_OF,
    WITH_WARM_UP,
    Answers,
    Measured,
    Rule,
    in_steps,
    longest_first,
)
from traceanalyzer.result import SEVERITIES, Confidence, Finding, Severity
from traceanalyzer.units import format_count, format_frac, format_ns, one_of

RULES: tuple[Rule, ...] = (
    *communication.RULES,
    *copies.RULES,
    *idle.RULES,
    *busy.RULES,
    *heavy_kernels.RULES,
    *hardware.RULES,
    *work.RULES,
)


def analyses(rules: Iterable[Rule]) -> set[str]:
    """Return the names of the analyses that rules need, and that of the replay for their gains."""
    return {REPLAY, *(name for rule in rules for name in (rule.analysis, *rule.uses))}


def require_rule(id_: str) -> None:
    """Check that there is such a rule, before anything is read.

    Raises:
        OptionError: there is none.
    """
    rules = {rule.id for rule in RULES}
    if id_ not in rules:
        raise OptionError(f"unknown rule {id_!r}; {one_of(id_, rules)}")


def with_thresholds(texts: str | Iterable[str]) -> tuple[Rule, ...]:
    """Return the rules with changed thresholds: ``straggler=5%``, ``straggler:critical=0.3``.

    Without a severity, the threshold of the lowest severity of the rule is changed.

    Raises:
        OptionError: a text is not a threshold, or the rule or severity is unknown.
    """
    rules = {rule.id: rule for rule in RULES}
    for text in (texts,) if isinstance(texts, str) else texts:
        name, _, value = text.partition("=")
        id_, _, severity = name.partition(":")
        require_rule(id_)
        rule = rules[id_]
        level = _severity(rule, severity)
        rules[id_] = replace(rule, levels={**rule.levels, level: _number(text, value)})
    return tuple(rules.values())


def _severity(rule: Rule, name: str) -> Severity:
    if not name:
        return min(rule.levels, key=SEVERITIES.index)
    severity = next((one for one in SEVERITIES if one == name), None)
    if severity is None:
        raise OptionError(f"unknown severity {name!r}; choose one of {', '.join(SEVERITIES)}")
    return severity


def _number(text: str, value: str) -> float:
    percent = value.strip().endswith("%")
    try:
        number = float(value.strip().rstrip("%"))
    except ValueError:
        number = float("nan")
    if not 0 <= number < float("inf"):
        raise OptionError(f"invalid threshold {text!r}; write RULE=N, for example straggler=10%")
    return number / 100 if percent else number


_TYPES = {"why": pl.String, **{str(severity): pl.Float64 for severity in SEVERITIES}}


def judge(examined: Examination, rules: Sequence[Rule] = RULES) -> Diagnosis:
    """Apply all rules to the results that they need; return root causes with their effects.

    Args:
        examined: results of the analyzers, and the reasons for missing ones.
        rules: rules with their thresholds.
    """
    least = {rule.id: min(rule.levels.values(), default=0.0) for rule in rules}
    answers = Answers(examined.results, one_job=not examined.jobs, least=least)
    little = _little_work(answers)
    lost = _lost_work(answers)
    skipped = {rule.id: _why_skipped(rule, examined, little) for rule in rules}
    skipped |= {
        one: why or lost or None
        for one, why in skipped.items()
        if one in _IDLE or (one == "uneven-steps" and lost == _MISSING)
    }
    unknown = bool(little) or lost == _MISSING
    candidates = [
        one for rule in rules if skipped[rule.id] is None for one in _candidates(rule, answers)
    ]
    gained = gains.with_gains(_chained(candidates), examined, answers, rules)
    return Diagnosis(
        tuple(sorted(gained.findings, key=_by_severity)),
        pl.DataFrame(schema=_BUDGET_TYPES) if unknown else budget(answers),
        _checks(rules, skipped, gained),
        examined.files,
        answers.time.per if answers.time.whole_ns else "",
        answers.time.of if answers.time.whole_ns else "",
        warning=_warning(examined, answers),
        about=", ".join(filter(None, _about(examined, gained))),
        timeline=None if unknown else _timeline(examined, gained.findings),
        instead=_of_text_only(examined),
        little=little,
        without=tuple(gained.without),
        input_notes=(
            *_advice(answers.problems),
            *filter(None, [examined.jobs, _inferred(answers)]),
            *gains.notes(gained, answers.time),
            *_of_samples(answers),
            *examined.notes,
        ),
    )


_MORE_LINES = "traceanalyzer py-spy-report shows all lines of code, and what else the samples do."


def _of_samples(answers: Answers) -> Iterator[str]:
    """Yield what most samples wait for, and which command shows the lines of code."""
    report = answers.of(LeafPaths)
    if report is not None:
        yield from filter(None, [samples.main_wait(report)])
        yield _MORE_LINES


def _about(examined: Examination, gained: gains.Gains) -> Iterator[str]:
    """Yield what was recorded, and how much of it is the profiler's."""
    yield described(examined.results)
    if gained.unprofiled_frac < 1:
        yield f"about {format_frac(1 - gained.unprofiled_frac)} shorter without the profiler"
    yield peak_memory(examined.results)


def _checks(
    rules: Sequence[Rule], skipped: Mapping[str, str | None], gained: gains.Gains
) -> pl.DataFrame:
    """Return one row per check, see :attr:`~.Diagnosis.rules`."""
    failed = {one.id for root in gained.findings for one in (root, *root.effects)}
    rows = [
        {
            "rule": rule.id,
            "status": SKIPPED if skipped[rule.id] else FAILED if rule.id in failed else PASSED,
            "why": skipped[rule.id],
            "looks_for": rule.looks_for,
            "measure": rule.measure,
            **{str(name): rule.levels.get(name) for name in SEVERITIES},
            "analysis": rule.analysis,
        }
        for rule in rules
    ]
    return pl.DataFrame(rows, schema_overrides=_TYPES)


def _of_text_only(examined: Examination) -> str:
    """Return the verdict on printed text if no input has a timeline."""
    others = {*examined.results} - {"printed", "info"}
    printed = examined.results.get("printed")
    return printed.verdict if printed and not others else ""


def _inferred(answers: Answers) -> str:
    """Return the note that steps are detected, if costs are per such step."""
    idle = answers.of(GpuIdle)
    inferred = idle is not None and idle.coverage.steps_by_kernels and answers.time.in_steps
    return INFERRED_STEPS if inferred else ""


def _timeline(examined: Examination, findings: Sequence[Finding]) -> Lanes | None:
    """Return a short timeline, with the ranks of the findings.

    None without idle time, if the files are of different jobs, or if there is a full one.
    """
    idle = result_of(examined.results, GpuIdle)
    if examined.jobs or "timeline" in examined.results or idle is None:
        return None
    ranks = {one.rank for one in findings if one.rank is not None}
    return summary(idle, result_of(examined.results, CommOutliers), ranks)


def _little_work(answers: Answers) -> str:
    """Return that the program ran almost no GPU work, if so: then its devices tell nothing."""
    idle, info = answers.of(GpuIdle), answers.of(Info)
    if idle is None or info is None or idle.coverage.on_host:
        return ""
    spans = info.contents["span_ns"].drop_nulls()
    if idle.coverage.work_lost or spans.is_empty():
        return ""
    recorded = int(spans.sum())
    if idle.busy_ns >= _LITTLE_NS or idle.busy_ns >= _LITTLE_FRAC * recorded:
        return ""
    return (
        f"The program runs almost no GPU work: {format_ns(idle.busy_ns)} in "
        f"{format_ns(recorded)} of recording."
    )


_ONLY_SPANS = (
    "The recording has neither GPU work, operators nor steps, but spans: traceanalyzer operators "
    "sums them by name and thread, traceanalyzer flamegraph shows how they nest."
)


def _only_spans(examined: Examination) -> bool:
    """Whether recordings have spans that no rule is about, such as those of browsers."""
    info = result_of(examined.results, Info)
    if info is None or {*examined.results} != {"info"} or info.contents.is_empty():
        return False
    spans, events = info.contents["spans"].sum(), info.contents["events"].sum()
    return bool(spans == events > 0 and info.contents["span_ns"].drop_nulls().sum())


def _lost_work(answers: Answers) -> str:
    """Return which GPU work is not in the file, if idle time is unknown without it."""
    idle, info, rows = answers.of(GpuIdle), answers.of(Info), answers.problems
    if idle is None or info is None:
        return ""
    on_gpu = answers.program.gpus or answers.of(Memory) is not None
    if idle.coverage.work_lost and idle.coverage.on_host and on_gpu:
        return "the GPU work of the program is not in the file"
    inside = pl.col("text").str.contains(soundness.WITHIN, literal=True)
    missing = int(rows.filter(inside, code=vocabulary.MISSING_KERNELS)["count"].sum())
    whole = missing + int(info.contents["device_work"].sum())
    return _MISSING if missing > _MUCH_LOST * whole else ""


#: Why idle time is unknown on devices.
_MISSING = "kernels are missing within the recording"
#: Idle time is unknown if more than this share of the device work is missing.
_MUCH_LOST = 0.1
#: Less GPU work than this, and than this share of the recorded time, is almost none.
_LITTLE_NS, _LITTLE_FRAC = 1_000_000, 0.001
#: Analyses that do not need GPU work.
_WITHOUT_GPU = ("info", "memory", "host_metrics", "py_spy_report")


def _why_skipped(rule: Rule, examined: Examination, little: str = "") -> str | None:
    """Return the reason why a rule is skipped; None if it can be applied."""
    if little and rule.analysis not in _WITHOUT_GPU and rule.analysis in examined.results:
        return "almost no GPU work"
    if rule.analysis not in examined.results and _only_spans(examined):
        return "the recording has spans only"
    if rule.analysis not in examined.results:
        return examined.missing.get(rule.analysis, "nothing was recorded")
    if rule.compares_ranks and examined.jobs:
        return DIFFERENT_JOBS
    return rule.lacks(examined.results[rule.analysis])


def _warning(examined: Examination, answers: Answers) -> str:
    """Return the limitations of all findings: unsound recordings, truncated files, several jobs."""
    problems = soundness.sentences(answers.problems)
    texts = problems[:_MOST_PROBLEMS]
    if left := len(problems) - len(texts):
        texts.append(f"{format_count(left, 'more problem')} of the recording: traceanalyzer info.")
    if examined.truncated:
        first, *more = examined.truncated
        files = f"{first} and {format_count(len(more), 'other file')} are"
        texts.append(f"{files if more else f'{first} is'} truncated: events are missing.")
    texts += [_ONLY_SPANS] * _only_spans(examined)
    if lost := _lost_work(answers):
        texts.append(f"Idle time of GPUs is unknown: {lost}.")
    if examined.jobs:
        texts.append(
            f"{DIFFERENT_JOBS.capitalize()}: ranks are not compared, and shares are of the time "
            "of all jobs together; run the command for each job (see the notes)."
        )
    return " ".join(texts)


#: Maximum number of problems of recordings above the findings.
_MOST_PROBLEMS = 3


def _advice(problems: pl.DataFrame) -> Iterator[str]:
    """Yield the note on what to do about the problems of the recordings."""
    advice = problems["advice"].drop_nulls().unique(maintain_order=True).to_list()
    if advice:
        yield f"For a sound recording: {' '.join(advice)}"


#: The rule whose findings are in the order of the logs: the first failure is the cause.
_IN_ORDER = "problems-in-logs"


def _by_severity(one: Finding) -> tuple[int, bool, bool, float, str, str]:
    """Sort key: severity, then gain; memory and time are compared by their shares.

    Within a severity, half of the gain counts where the confidence is low. A gain is replayed, or
    the bound that its rule knows: what a fix leaves of the time is part of the rule. What the
    recording lacks comes first. Defects come before the bubble of a pipeline, which is as its
    schedule has it.
    """
    is_of_recording = one.analysis == "info" and one.severity != "info"
    severity = -SEVERITIES.index(one.severity)
    frac = (one.cost_frac if one.gain_frac is None else one.gain_frac) or 0.0
    weighted = frac / 2 if one.confidence == "low" else frac
    is_bubble = one.id == RULE_OF[BUBBLE]
    title = "" if one.id == _IN_ORDER else one.title
    return severity, not is_of_recording, is_bubble, -weighted, one.id, title


# --- findings and their effects --------------------------------------------------------------

#: From this explained share on, a finding is an effect of the one that explains most.
_EXPLAINED = 0.8


#: From this share in one step on, a loss does not repeat.
_NEARLY_ALL = 0.9


@dataclass(frozen=True)
class _Candidate:
    """A finding, and the shares of its cost that other findings explain, by rule id."""

    finding: Finding
    explained: Mapping[str, float]


def _candidates(rule: Rule, answers: Answers) -> Iterator[_Candidate]:
    for measured in answers.measured(rule):
        if measured.confidence == "high" and not _repeats(measured, answers.time):
            measured = replace(measured, confidence="medium")
        measured = _free_of_loader(_limited(measured, rule, answers), rule, answers)
        measured = replace(measured, advice=answers.program.fitting(measured.advice))
        if answers.program.amd:
            title, advice = in_hip(measured.title), in_hip(measured.advice)
            evidence = tuple(map(in_hip, measured.evidence))
            measured = replace(measured, title=title, advice=advice, evidence=evidence)
        is_once = measured.once and answers.time.in_steps
        severity = rule.severity(measured.size or 0.0, "low" if is_once else measured.confidence)
        if severity is not None:
            if measured.of == WITH_WARM_UP and (measured.size or 0) < _MOSTLY:
                severity = "info"
            explained = {**measured.explained}
            if rule.id != "kernel-tuning":
                explained |= answers.of_tuning(measured.intervals)
            yield _Candidate(_finding(rule, severity, measured, answers), explained)


#: Setup in warm-up steps that takes so much of the time is a problem of short runs.
_MOSTLY = 0.3

_CONFIDENCES = get_args(Confidence)
#: Findings that depend on when devices are idle, on the durations of kernels, on equal ranks.
_IDLE, _DURATIONS = frozenset(IDLE_RULES.values()), {"throttled-steps", "slow-gpu", "uneven-steps"}
#: Findings that depend on when the work after a gap was launched.
_BY_LAUNCHES = {"launch-bound", "device-wait", "short-gaps"}
_RANKS = {"straggler", "slow-gpu", "collective-outliers", "slow-collectives"}
#: The highest confidence of findings that a problem of the recording affects.
_LIMITS: Mapping[str, tuple[Confidence, Collection[str]]] = {
    vocabulary.DEVICE_CLOCK: ("medium", _IDLE),
    vocabulary.MISSING_KERNELS: ("low", _IDLE),
    vocabulary.UNLINKED_WORK: ("low", _BY_LAUNCHES),
    vocabulary.IMPOSSIBLE_TIMES: ("medium", _DURATIONS),
    vocabulary.RECORDINGS_APART: ("medium", _RANKS),
    vocabulary.SAME_RANK: ("low", _RANKS),
    vocabulary.GRAPH_GAPS: ("low", {"device-wait", "short-gaps"}),
}


def _limited(measured: Measured, rule: Rule, answers: Answers) -> Measured:
    """Return the measurement with the confidence that the recording allows."""
    codes = set(answers.problems["code"])
    limits = [limit for code, (limit, ids) in _LIMITS.items() if code in codes and rule.id in ids]
    if rule.id in _IDLE and _left_out(answers) >= _MUCH:
        limits.append("low")
    lowest = min((*limits, measured.confidence), key=_CONFIDENCES.index)
    return replace(measured, confidence=lowest)


#: From this share of impossible records on, time without work may be theirs.
_MUCH = 0.02


def _left_out(answers: Answers) -> float:
    """Return the share of the records of device work that are impossible."""
    rows, info = answers.problems, answers.of(Info)
    wrong = int(rows.filter(pl.col("code") == vocabulary.IMPOSSIBLE_TIMES)["count"].sum())
    if not wrong or info is None:
        return 0.0
    return wrong / (wrong + int(info.contents["device_work"].sum()))


def _free_of_loader(measured: Measured, rule: Rule, answers: Answers) -> Measured:
    """Return a measurement of kernels that gains nothing in steps that wait for loader workers."""
    total, is_timed = measured.total_ns, measured.intervals is not None
    if (
        rule.analysis not in ("kernels", "efficiency")
        or is_timed
        or not total
        or answers.free_of_loader == 1
    ):
        return measured
    most = total if measured.most_gain_ns is None else measured.most_gain_ns
    left = round(answers.free_of_loader * most)
    return replace(measured, most_gain_ns=left, evidence=(gains.AFTER_LOADER, *measured.evidence))


def _repeats(measured: Measured, time: DeviceTime) -> bool:
    """Whether lost time was recorded more than once; also true for findings about other things.

    That is, no step has nearly all of it; without steps, a device has several intervals of it.
    Setup is known not to repeat.
    """
    rows = measured.intervals
    if measured.total_ns is None or measured.once:
        return True
    if rows is None or rows.is_empty():
        return not time.in_steps or time.windows["step"].n_unique() > 1
    if time.in_steps:
        return time.share_of_one_step(rows) < _NEARLY_ALL
    return rows.height > rows.n_unique(["rank", "device"])


#: The longest gap is not named if the title has all else that is said of it.
_OF_GAP = {"Longest", "gap", "while", "the", "host", "is", "in"}
_PARTS = re.compile(r"\w(?:\S*\w)?")


def _finding(rule: Rule, severity: Severity, measured: Measured, answers: Answers) -> Finding:
    names = {field.name for field in fields(Finding)}
    facts = {name: fact for name, fact in vars(measured).items() if name in names}
    title = _OF_GAP | {*_PARTS.findall(measured.title)}
    facts["evidence"] = tuple(one for one in measured.evidence if {*_PARTS.findall(one)} - title)
    time = answers.time
    if measured.total_ns is not None and measured.of:
        facts |= time.cost(measured.total_ns, once=measured.once)
        facts |= {"cost_frac": measured.cost_frac, "of": measured.of}
        if not measured.once:
            facts["cost_ns"] = round(measured.total_ns / max(time.n, 1))
    elif measured.total_ns is not None:
        facts["cost_ns"] = measured.total_ns
        if time.whole_ns:
            facts |= time.cost(measured.total_ns, once=measured.once)
    elif measured.cost_frac is None:
        facts["of"] = ""
    if measured.most_gain_ns is not None:
        facts["gain_frac"] = time.frac(measured.most_gain_ns)
    return Finding(id=rule.id, severity=severity, analysis=rule.analysis, **facts)


def _chained(candidates: Sequence[_Candidate]) -> list[Finding]:
    """Return root causes, each with the findings that it explains as effects."""
    costs = [one.finding.cost_frac or 0 for one in candidates]
    places = sorted(range(len(costs)), key=lambda place: (costs[place], -place))
    by_id = {candidates[place].finding.id: place for place in places}  # the largest of a rule
    present = {id_: candidates[place] for id_, place in by_id.items()}
    parents = [_parent(one, present) for one in candidates]
    effects: dict[int, list[Finding]] = {}
    roots = []
    for place, one in enumerate(candidates):
        root, visited = place, set[int]()
        while (parent := parents[root]) is not None and root not in visited:
            visited.add(root)
            root = by_id[parent]
        if root == place or root in visited:
            roots.append(place)
        else:
            effects.setdefault(root, []).append(_effect(one.finding, candidates[root].finding))
    return [
        replace(
            candidates[place].finding,
            effects=tuple(sorted(effects.get(place, ()), key=_by_severity)),
        )
        for place in roots
    ]


def _effect(one: Finding, cause: Finding) -> Finding:
    """Return a finding below its cause: without advice, and the cause once if it is the same."""
    title, _, text = one.title.partition(" Cause: ")
    same = re.sub("^idle,? |[.]$", "", text) in cause.title
    return replace(one, advice="", title=title if same else one.title)


def _outweighs(causes: Sequence[_Candidate], effect: _Candidate) -> bool:
    """Whether causes cost about as much as their effect, if all are shares of the same."""
    if any(one.finding.of != effect.finding.of for one in causes):
        return True
    cost = sum(one.finding.cost_frac or 0.0 for one in causes)
    return _EXPLAINED * (effect.finding.cost_frac or 0.0) <= cost


def _parent(one: _Candidate, present: Mapping[str, _Candidate]) -> str | None:
    """Return the finding that explains most of this one, if present findings explain enough.

    One that costs much less is not the cause: then it is the next one, or the largest if all
    together cost as much.
    """
    shares = {id_: share for id_, share in one.explained.items() if share and id_ in present}
    if sum(shares.values()) < _EXPLAINED:
        return None
    largest = sorted(shares, key=lambda id_: (-shares[id_], id_))
    if not _outweighs([present[id_] for id_ in largest], one):
        return None
    much = [id_ for id_ in largest if shares[id_] >= MUCH_LEFT]
    return next((id_ for id_ in much if _outweighs([present[id_]], one)), largest[0])


_BUDGET_TYPES = {"part": pl.String, "name": pl.String, "each_ns": pl.Int64, "time_frac": pl.Float64}

#: Copies and causes of idle time with a smaller share are left out.
_LEAST = 0.001
#: Causes of less together change no printed share.
_LEAST_ROUNDED = 0.0005

_TOP_KERNELS = 5

#: Causes of exposed communication without wait time.
_TRANSFERS = (REPEATED, SLOW, OUTLIER, LINK, EXPOSED)


def _sums(time: DeviceTime) -> Counter[tuple[str, str]]:
    """Return the lost time by part and name: ``WAIT``, transfers, or a cause of idle time.

    A device runs communication, or it is idle while its host is in a collective.
    """
    cause, on_host = pl.col("cause").cast(pl.String), pl.col("on_host_ns")
    in_collective = on_host.is_not_null() | (cause == EXPOSED)
    of_copies = pl.when(cause == COPIES).then(pl.lit(EXPOSED_COPIES)).otherwise(pl.lit(IDLE))
    part = pl.when(in_collective).then(pl.lit(EXPOSED_COMMUNICATION)).otherwise(of_copies)
    is_transfer, name = cause.is_in(_TRANSFERS), pl.when("waited").then(pl.lit(WAIT))
    of_host = name.when(is_transfer).then(pl.lit(causes.PEER)).otherwise(cause)
    of_device = name.when(is_transfer).then(pl.lit(EXPOSED)).otherwise(cause)
    rows = time.losses.group_by(part=part, of_device=of_device, of_host=of_host).agg(
        pl.col("lost_ns", "on_host_ns").sum()
    )
    sums: Counter[tuple[str, str]] = Counter()
    for kind, device, host, lost, in_host in rows.iter_rows():
        sums[kind, device] += lost - in_host
        sums[IDLE, host] += in_host
    return +sums


def budget(answers: Answers) -> pl.DataFrame:
    """Return the time budget of all devices.

    Returns:
        part, name, each_ns (mean per step and device, or per device), time_frac (of the time).
        The parts ``busy``, ``exposed communication``, ``exposed copies`` and ``idle`` add up to the
        time; ``of busy`` rows are parts of the busy time: overlapped communication, and the longest
        kernels. A device is idle while its host is in a collective.
    """
    time = answers.time
    if not time.whole_ns:
        return pl.DataFrame(schema=_BUDGET_TYPES)
    sums = _sums(time)
    idle = {name: ns for (part, name), ns in sums.items() if part == IDLE}
    copies = sums[EXPOSED_COPIES, COPIES]
    work = "operators" if time.on_host else "compute"
    rows = [(BUSY, work, time.whole_ns - sums.total())]
    overlap, kernels, comm = answers.of(Overlap), answers.of(Kernels), answers.of(CommOutliers)
    names = causes.NAMES if (idle_time := answers.of(GpuIdle)) is None else idle_time.names
    names = names | {causes.PEER: causes.IN_COLLECTIVES, WAIT: WAIT}
    names |= {EXPOSED: "transfer" if comm is None else comm.transfer_name}
    exposed = {name: sums[EXPOSED_COMMUNICATION, name] for name in names}
    of_exposed = sorted(exposed.items(), key=lambda item: (item[0] != WAIT, -item[1]))
    rows += [(EXPOSED_COMMUNICATION, names[name], ns) for name, ns in of_exposed if ns]
    if overlap is not None and overlap.sums["communication_ns"]:
        overlapped, span = (overlap.sums[n] for n in ("overlapped_communication_ns", "span_ns"))
        ns = round(overlapped * time.whole_ns / span)
        rows.append((OF_BUSY, "overlapped communication", ns))
    least = _LEAST * time.whole_ns
    rows += [(EXPOSED_COPIES, "copies and memsets", copies)] * (copies >= max(least, 1))
    of_cause = sorted(idle.items(), key=lambda item: (-item[1], item[0]))
    rows += [(IDLE, names[cause], ns) for cause, ns in of_cause if ns >= least]
    few = sum(ns for ns in idle.values() if ns < least)
    rows += [(IDLE, OTHER, few)] * (few >= _LEAST_ROUNDED * time.whole_ns)
    if kernels is not None and kernels.span_ns:
        compute = kernels.heaviest("name").filter(pl.col("family") != COMMUNICATION)
        of_steps = longest_first(in_steps(kernels, time), compute["kernel"], "busy_ns")
        rows += [(OF_BUSY, name, ns) for name, _, ns in of_steps.head(_TOP_KERNELS).iter_rows()]
    return pl.DataFrame(
        [(part, name, time.each_ns(ns), time.frac(ns)) for part, name, ns in rows],
        schema=_BUDGET_TYPES,
        orient="row",
    )
