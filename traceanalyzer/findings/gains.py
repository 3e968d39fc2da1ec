"""What removing the cause of each finding gains: the run is replayed without it.

Of a finding about idle time, exposed copies or communication, what happened in its intervals is
removed: host time, copies and transfers; of communication, transfers alone. Of loops with kernels
for each tensor, fewer kernels do the work. Of one about slow ranks or their hosts, these become
like the others; a rank with larger inputs like the mean of all ranks; of a pipeline stage, all
stages compute as long as the mean; of unequal work and experts, all ranks become like their mean.
Of products without tensor cores, the gain counts if it is much less than their time: these kernels
become several times as fast.
Other findings have no change that a replay knows: they gain at most their cost. What gains nothing
because workers of a loader limit the run is rated by its gain without this limit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import polars as pl

from traceanalyzer.analyzers.base import Examination
from traceanalyzer.analyzers.common import kernel_names
from traceanalyzer.analyzers.common.clocks import OWNER
from traceanalyzer.analyzers.common.device_work import COMMUNICATION, MEMORY
from traceanalyzer.analyzers.common.names import called_in
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.registry import REPLAY
from traceanalyzer.analyzers.replay.changes import (
    MEMORY_CALLS,
    NO_GAIN,
    SMALL_COPIES,
    SYNCHRONISATION,
    Change,
    fused,
    share_with_copies,
)
from traceanalyzer.analyzers.replay.engine import Weights
from traceanalyzer.analyzers.replay.profiler import UNPROFILED
from traceanalyzer.analyzers.what_if.replay import Replay
from traceanalyzer.findings.busy import OF_MANY_FRAC
from traceanalyzer.findings.device_time import DEVICE, DeviceTime
from traceanalyzer.findings.result import DIFFERENT_JOBS
from traceanalyzer.findings.rule import IDLE_RULES, RULE_OF, Answers, Rule
from traceanalyzer.frames import intervals
from traceanalyzer.result import Finding
from traceanalyzer.units import format_frac, format_ns

#: A gain that is larger than the cost by at most this factor is the cost.
_AS_MUCH = 1.05
AFTER_LOADER = "Steps that wait for the data loader gain from it only once the loader is faster."
#: The rule about communication that nothing overlaps.
EXPOSED_ID = "exposed-communication"
#: Rules about transfers that take too long; without them, the host takes as long for what it does.
_TRANSFERS = {EXPOSED_ID, "collective-outliers", "slow-link", "slow-collectives"}
#: Rules about transfers that the host may wait for without a call that shows it.
_MAY_WAIT = {"slow-link", "slow-collectives"}
#: Rules about transfers that take too long, and about those that are not needed.
_OF_LINKS = {*_TRANSFERS, "repeated-reduction"}
#: Rules about settings whose kernels and waits are gone without them.
_SETTINGS = ("anomaly-detection", "kernel-tuning")
#: Rules whose cause is removed by removing what happened in the intervals of the finding.
_IN_INTERVALS = {*RULE_OF.values(), EXPOSED_ID, *_SETTINGS, "exposed-scheduler"} - {
    "waiting-for-ranks", "pipeline-bubble", "unknown-idleness", "device-wait", "short-gaps",
}  # fmt: skip
#: Rules about kernels that one kernel, or none, could replace: what remains of their time.
_LOOPS = {"unfused-optimizer": OF_MANY_FRAC, "tensor-loop": OF_MANY_FRAC} | dict.fromkeys(
    _SETTINGS, 0.0
)
#: Rules about slow kernels: their names, and how many times as fast they can be.
_FASTER = {"no-tensor-cores": f"{kernel_names.PLAIN_FLOAT}=8"}
#: Rules about time of the host, which the profiler makes longer, and how to check them.
_SLOWED = (IDLE_RULES[causes.LAUNCH], IDLE_RULES[causes.HOST_CODE])
_CHECK = "First measure a step without the profiler (or with nsys): is it as long? If it is: "
#: What else is left of a critical gain is a warning.
_LEAST_LEFT = 0.02
#: A finding whose lost time is so many times as rare in a sample of steps is not in it.
_RARE = 4
#: Waits for the device, and the small copies that read its results.
_HOST_AHEAD = (SYNCHRONISATION, SMALL_COPIES)
#: Rules about calls that stop the host, and which of them in that time are free, too: the host runs
#: ahead, so that the cost of launches and calls that the GPU waited for is hidden. It may then
#: overlap more than the idle time of the finding, by at most this factor.
_WAITS, _MORE_OVERLAP = {
    "synchronisation": _HOST_AHEAD, "anomaly-detection": _HOST_AHEAD,
    "memory-management": (MEMORY_CALLS,),
}, 4.0  # fmt: skip
_NO_TIME = pl.DataFrame(
    schema={
        "path": pl.String, "rank": pl.Int32, "device": pl.Int32, "start_ns": pl.Int64,
        "end_ns": pl.Int64,
    }
)  # fmt: skip
#: Rules about a rank that becomes like the others, and about all ranks.
_OF_RANKS, _UNEQUAL = {"straggler", "slow-gpu"}, {"unequal-work", "expert-imbalance"}


@dataclass(frozen=True)
class Gains:
    """Findings with their gains.

    Attributes:
        findings: those that gain something, or whose gain is not known.
        without: those that gain nothing.
        together_ns: the gain per step of removing the causes of all findings with a known gain.
        together_frac: the same as a share of the step.
        error_frac: relative error of the replay without a change; None if nothing was replayed.
        why: why nothing was replayed.
        sampled: which steps are replayed; empty if all are.
        after_first: gains are means of the steps after the first, costs of all.
        of_same_steps: all gains are means of the same steps: all, or those after the first.
        unprofiled_frac: step time without the profiler as a share of the recorded one; gains are
            of the steps without it.
    """

    findings: tuple[Finding, ...]
    without: tuple[Finding, ...] = ()
    together_ns: float = 0.0
    together_frac: float = 0.0
    error_frac: float | None = None
    why: str = ""
    sampled: str = ""
    unprofiled_frac: float = 1.0
    after_first: bool = False
    of_same_steps: bool = True


def with_gains(
    findings: Sequence[Finding], examined: Examination, answers: Answers, rules: Sequence[Rule]
) -> Gains:
    """Return findings with their gains, rated by them.

    A finding that has a ``gain_frac`` gains that at most.
    """
    by_id = {rule.id: rule for rule in rules}
    bounds = tuple(_bound(one, by_id[one.id]) for one in findings)
    time, replay = answers.time, examined.replay
    if not time.whole_ns or examined.jobs:
        return Gains(bounds, why=DIFFERENT_JOBS if examined.jobs else "")
    if not isinstance(replay, Replay):
        return Gains(bounds, why=examined.missing.get(REPLAY, ""))
    time = replace(time, windows=_of_process(time.windows, replay))
    if not _is_complete(replay, time):
        return Gains(bounds, why="not all ranks can be replayed")
    counted = _counted(replay, time, replay.job.step_names[1:])
    kept, off_path, removed, beyond, more = [], [], [], 0.0, 0.0
    for limit, one in zip((one.gain_frac for one in findings), bounds, strict=True):
        placed = one.intervals if one.intervals is None else _of_process(one.intervals, replay)
        inside, factor = _of_sample(replace(one, intervals=placed), replay, time)
        frac = _gain_frac(inside, replay, counted) if factor else None
        if frac is None:
            kept.append(one)
            continue
        more, frac = more + (factor - 1) * frac, frac * factor
        by_step = _by_step([inside], replay, time)
        cost = (one.cost_frac or 0.0) / replay.unprofiled_frac * by_step
        is_off, most = frac < NO_GAIN, 1.0 if limit is None else limit * by_step
        beyond += max(frac - most, 0.0) if min(frac, most) >= NO_GAIN else 0.0
        frac = min(frac, most)
        frac = cost if cost < frac <= _AS_MUCH * cost else frac
        if is_off and one.id == EXPOSED_ID and most >= _LEAST_OF_PAIR:
            one, inside, both = _paired(one, inside, replay, counted, answers)
            is_off, frac = not both, min(both * factor, most) or frac
        known = _with_gain(one, frac, replay, time)
        if is_off:
            off_path.append((known, inside, factor, most))
            continue
        known = replace(known, severity=by_id[one.id].severity(frac, one.confidence) or "info")
        alone = one.step or one.ranks or (one.rank is not None and len(replay.job.programs) > 1)
        if one.id in _SLOWED and known.severity != "info" and not alone:  # not slow on others, too
            least = _share([inside], replay.unprofiled("profiler_most_frac"), counted) * factor
            known = _with_least(known, min(least, frac), by_id[one.id])
        kept.append(known)
        if frac >= NO_GAIN and known.gain_basis == "replay":
            removed.append(inside)
    left = _behind_loader(off_path, kept, removed, replay, counted, by_id)
    together = 0.0
    if len(removed) > 1:
        largest = max(one.gain_frac or 0.0 for one in kept if one.gain_basis == "replay")
        together = max(_share(removed, replay, counted) + more - beyond, largest)
    return Gains(
        tuple(_below_sure(kept)), tuple(left), together * _step_ns(removed, replay, time), together,
        replay.error_frac, sampled=replay.job.sampled, unprofiled_frac=replay.unprofiled_frac,
        after_first=_is_by_step(replay, time) and replay.step_ns(()) is not None,
        of_same_steps=len({_is_usual([one], replay, time) for one in removed}) < 2,
    )  # fmt: skip


def _behind_loader(
    without: Sequence[tuple[Finding, Finding, float, float]], kept: list[Finding],
    removed: list[Finding], replay: Replay, time: DeviceTime, rules: Mapping[str, Rule],
) -> list[Finding]:  # fmt: skip
    """Keep findings that gain nothing only because batches come late, and return the others.

    Their gain is that once workers deliver batches in time. In a pause of one step they pile up.

    Args:
        without: findings off the critical path, the same in a sample of the steps, the factor for
            the gain of the sample, and the most that each gains.
        kept: receives those with a gain.
        removed: findings with a gain; receives these, too.
        replay: the replay of the run.
        time: the counted steps.
        rules: all rules by id.
    """
    loader = [one for one in removed if one.id == IDLE_RULES[causes.DATALOADING]]
    left = []
    for known, inside, factor, most in without:
        frac, severity = 0.0, None
        if loader and not known.step and replay.waits_for_batches():
            more = _share([*loader, inside], replay, time) - _share(loader, replay, time)
            frac = min(more * factor, most)
            severity = rules[known.id].severity(frac, known.confidence)
        if severity is None or frac < NO_GAIN:
            left.append(known)
            continue
        severity = "warning" if severity == "critical" else severity
        known = replace(known, severity=severity, evidence=(AFTER_LOADER, *known.evidence))
        kept.append(_with_gain(known, frac, replay, time))
        removed.append(inside)
    return left


def _with_gain(one: Finding, frac: float, replay: Replay, time: DeviceTime) -> Finding:
    """Return a finding whose cause a replay removes, with its gain."""
    gain_ns = round(frac * _step_ns([one], replay, time))
    return replace(
        one, gain_ns=gain_ns, gain_frac=frac, gain_basis="replay",
        gain_change=_change(one),
        gain_of=_whole(one, replay, time),
    )  # fmt: skip


def _whole(one: Finding, replay: Replay, time: DeviceTime) -> str:
    """Return what a gain is a share of if that is another time than the recorded one."""
    is_other = _is_usual([one], replay, time) and abs(_by_step([one], replay, time) - 1) >= OTHER
    parts = [" after the first step"] * is_other
    parts += [" without the profiler"] * (replay.unprofiled_frac < 1)
    return f"{time.of}{''.join(parts)}" * bool(parts)


#: From this difference on, the mean step after the first is another one than that of all steps.
OTHER = 0.05


def _step_ns(findings: Collection[Finding], replay: Replay, time: DeviceTime) -> float:
    """Return the time that a gain is a share of: of a step (or the run) without the profiler."""
    if _is_usual(findings, replay, time) and (ns := replay.step_ns({*time.windows["step"]})):
        return ns
    return time.whole_ns / time.windows.height * replay.unprofiled_frac


def _is_usual(findings: Collection[Finding], replay: Replay, time: DeviceTime) -> bool:
    """Whether a gain is one of the steps after the first, in which nearly all of the time is."""
    each = (one.intervals for one in findings if one.intervals is not None)
    timed = pl.concat([_NO_TIME, *each], how="vertical_relaxed")
    return _is_by_step(replay, time) and (timed.is_empty() or replay.is_in_steps(timed))


def _by_step(findings: Collection[Finding], replay: Replay, time: DeviceTime) -> float:
    """Return the mean of all steps, of which costs are shares, by the one of gains."""
    mean = replay.unprofiled_frac * time.whole_ns / time.windows.height
    return mean / _step_ns(findings, replay, time)


def _is_by_step(replay: Replay, time: DeviceTime) -> bool:
    return time.in_steps and not replay.job.sampled


#: Causes that hide each other gain together at least this share of the time. Copies hide transfers
#: of which they run at the same time for this share.
_LEAST_OF_PAIR, _PARALLEL = 0.1, 0.5


def _paired(
    one: Finding, inside: Finding, replay: Replay, time: DeviceTime, answers: Answers
) -> tuple[Finding, Finding, float]:
    """Return a finding about transfers with what else takes as long, and the gain without both.

    The gain is 0 if it is small, too.
    """
    pair = replace(inside, fix="with-others")
    late = replay.waits_for_batches() >= NO_GAIN * replay.whole_ns  # workers limit the run
    both = 0.0 if late else _share([pair], replay, time)
    if both < _LEAST_OF_PAIR or inside.intervals is None:
        return one, inside, 0.0
    copies = share_with_copies(replay.job, inside.intervals) >= _PARALLEL
    other, advice = "the host takes as long", "Shorten what the host does then, too."
    if copies:
        other = f"copies{called_in(answers.place(MEMORY))} run at the same time"
        advice = "Start these copies earlier, too."
    title = f"{one.title.rstrip('.')}, and {other}: one without the other gains nothing."
    known = replace(one, title=title, advice=f"{one.advice} {advice}", fix=pair.fix)
    known = replace(known, confidence="medium" if copies else "low")
    return known, pair, both


def _with_least(one: Finding, least: float, rule: Rule) -> Finding:
    """Return a finding rated by the gain that it has if the profiler takes the most that is usual.

    If that is less than half of its gain, or less severe, the profiler may cause it.
    """
    rated = rule.severity(least, one.confidence) or "info"
    if rated == one.severity and 2 * least >= (one.gain_frac or 0.0):
        return one
    rated = "warning" if one.severity == "critical" and least >= _LEAST_LEFT else rated
    text = (
        f"Gain without the profiler: {format_frac(least)} to {format_frac(one.gain_frac)}, because "
        "it is not known how much it slows the host."
    )
    return replace(
        one, severity=rated, title=f"{one.title.rstrip('.')}, which the profiler may cause.",
        gain_basis="bound", confidence="low", evidence=(text, *one.evidence),
        advice=f"{_CHECK}{one.advice}",
    )  # fmt: skip


def _below_sure(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield findings; those that the profiler may cause are info if others gain half as much."""
    sure = [one for one in findings if one.id not in _SLOWED and one.confidence != "low"]
    most = max((one.gain_frac or 0.0 for one in sure), default=0.0)
    for one in findings:
        is_less = (
            one.id in _SLOWED and one.gain_basis == "bound" and most >= (one.gain_frac or 0) / 2
        )
        yield replace(one, severity="info") if is_less else one


def _counted(replay: Replay, time: DeviceTime, names: Sequence[str]) -> DeviceTime:
    """Return the time of steps (or parts) of a sample; otherwise of all."""
    if not replay.job.sampled:
        return time
    if (parts := replay.spans_of_parts(names)) is None:
        return replace(time, windows=time.windows.filter(pl.col("step").is_in(names)))
    windows = time.windows.with_columns(OWNER).join(parts, on="owner", maintain_order="left")
    windows = windows.with_columns(pl.col("start", "end").clip("from", "until"))
    windows = windows.filter(pl.col("start") < pl.col("end"))
    return replace(time, windows=windows.select(time.windows.columns))


def _of_sample(one: Finding, replay: Replay, time: DeviceTime) -> tuple[Finding, float]:
    """Return a finding with its intervals in a sample of the steps, and a factor for its gain.

    factor = lost time per time of all steps / lost time per time of the counted steps of the
    sample; 0 if the sample has less than a quarter of what is usual.
    """
    if not replay.job.sampled or one.intervals is None or one.intervals.is_empty():
        return one, 1.0
    names = replay.job.step_names
    of_sample = [_counted(replay, time, some).windows for some in (names, names[1:])]
    rows = one.intervals.with_columns(start="start_ns", end="end_ns")
    windows = [time.windows, *of_sample]
    in_all, replayed, counted = intervals.overlaps(rows, windows, DEVICE)
    whole, _, some = (int((each["end"] - each["start"]).sum()) for each in windows)
    lost, expected = int(counted.sum()), int(in_all.sum()) * some / max(whole, 1)
    factor = expected / lost if 0 < expected < _RARE * lost else 0.0
    return replace(one, intervals=one.intervals.filter(replayed > 0)), factor


def _bound(one: Finding, rule: Rule) -> Finding:
    """Return a finding that gains its cost at most, or less if the rule gives a limit."""
    if one.cost_ns is None:
        return one
    if one.gain_frac is not None and one.cost_frac and one.gain_frac < one.cost_frac:
        gain_ns = round(one.cost_ns * one.gain_frac / one.cost_frac)
        severity = rule.severity(one.gain_frac, one.confidence) or "info"
        return replace(one, gain_ns=gain_ns, gain_basis="bound", severity=severity)
    return replace(one, gain_ns=one.cost_ns, gain_frac=one.cost_frac, gain_basis="bound")


def _of_process(rows: pl.DataFrame, replay: Replay) -> pl.DataFrame:
    """Return rows; those of the GPUs of the only process, which are ranks, with its rank."""
    if len(replay.job.names) == len(replay.job.programs):
        return rows
    return rows.with_columns(rank=pl.lit(replay.job.programs[0].rank, rows["rank"].dtype))


def _is_complete(replay: Replay, time: DeviceTime) -> bool:
    """Whether the programs are of all ranks (and files without one) with lost time, one of each."""
    owners = [one.owner for one in replay.job.programs]
    measured = time.windows.select("path", OWNER).unique()["owner"].to_list()
    return len({*owners}) == len(owners) == len(measured) and {*owners} == {*measured}


def _gain_frac(one: Finding, replay: Replay, time: DeviceTime) -> float | None:
    """Return the gain of a finding as a share; None if no change removes its cause.

    Without other ranks, a call that waits for something that was not recorded is on the critical
    path, and it is not known what removes it. So is idle time after the last work. If workers of a
    data loader limit the run, a cause that takes longer than the waits for them gains at most that.
    """
    if one.cost_ns is None or one.per.endswith("once"):
        return None
    if one.id in _FASTER:  # its cost is a bound of the gain, unless the host is the limit
        change = Change(scale=(_FASTER[one.id],))
        weights = replay.without(_NO_TIME, _NO_TIME, change)
        frac = replay.shorter_frac(weights, {*time.windows["step"].drop_nulls()})
        return frac if 2 * frac < (one.cost_frac or 0.0) else None
    if _is_of_ranks(one):
        frac = _share([one], replay, time)
        if frac >= NO_GAIN or one.id in _OF_RANKS | _UNEQUAL:
            return frac if frac >= NO_GAIN else None
        one = replace(one, ranks=())  # what is slow on these ranks is slow on the others, too
    if one.id in {*_IN_INTERVALS, *_LOOPS} and one.intervals is not None and one.intervals.height:
        cost = (one.cost_frac or 0.0) / replay.unprofiled_frac * _by_step([one], replay, time)
        frac = min(_share([one], replay, time), _MORE_OVERLAP * cost)
        alone = replay.waits_for_others and len(replay.job.programs) == 1
        unknown = alone or not replay.has(one.intervals)
        # the host itself may take the time for the next batch, which workers would deliver earlier
        late = replay.waits_for_batches() / replay.whole_ns
        hidden = 0 < late < cost and 2 * frac < cost and one.id != _SLOWED[0]
        if one.id in _MAY_WAIT:  # for the transfer, in all that the host does meanwhile
            waits = replace(one, fix="with-others")
            hidden |= 2 * frac < min(cost, _share([waits], replay, time))
        return None if hidden or (unknown and frac < NO_GAIN) else frac
    return None


def _change(one: Finding) -> str:
    """Return what is removed of the run for the gain of a finding."""
    if one.id in _UNEQUAL:
        return "all ranks like their mean"
    if ranks := _ranks(one):
        return _like_others(ranks, [one]).text
    if one.id in _LOOPS:
        return "one kernel in place of each loop" if _LOOPS[one.id] else "no such kernels"
    if one.id in _FASTER:
        return f"these kernels {_FASTER[one.id].rpartition('=')[2]} times as fast"
    if _is_transfer(one):
        calls = ", no calls of small ones" if one.fix == "fewer-calls" else ""
        return f"instant transfers in this time{calls}"
    free = Change(free=_WAITS.get(one.id, ()))
    kept = " (except before 1 ms or more of host code)" * (free.free == _HOST_AHEAD)
    waits = f", {free.text}{kept}" if free.free else ""
    return f"no host time, copies and transfers in this time{waits}"


def _is_transfer(one: Finding) -> bool:
    return one.id in _TRANSFERS and one.fix != "with-others"


def _is_of_ranks(one: Finding) -> bool:
    return bool(_ranks(one)) or one.id in _UNEQUAL


def _ranks(one: Finding) -> tuple[int, ...]:
    """Return the ranks that become like the others, to remove the cause of a finding."""
    alone = () if one.rank is None else (one.rank,)
    return one.ranks or (alone if one.id in _OF_RANKS else ())


def _share(findings: Collection[Finding], replay: Replay, time: DeviceTime) -> float:
    """Return the gain of removing the causes of findings as a share of the counted steps.

    Ranks change in all steps, intervals of other findings are in counted steps only.
    """
    weights = _weights(findings, replay)
    if _is_usual(findings, replay, time) or any(map(_is_of_ranks, findings)):
        return replay.shorter_frac(weights, {*time.windows["step"].drop_nulls()})
    length = (pl.col("end") - pl.col("start")).sum()
    counted: list[int] = time.windows.group_by(DEVICE).agg(length)["end"].to_list()
    ends = dict(time.windows.group_by(OWNER).agg(pl.col("end").max()).iter_rows())
    lost = _lost(findings, _IN_INTERVALS)
    whole_ns = max(counted) * replay.unprofiled_frac
    return min(replay.gain_ns(weights, ends, lost) / whole_ns, 1.0)


def _lost(findings: Collection[Finding], ids: Collection[str]) -> pl.DataFrame:
    """Return the time of these rules that is removed: path, rank, device, start_ns, end_ns."""
    timed = [one for one in findings if one.id in ids and not _ranks(one)]
    rows = [one.intervals for one in timed if one.intervals is not None]
    return pl.concat([_NO_TIME, *rows], how="vertical_relaxed")


def _weights(findings: Collection[Finding], replay: Replay) -> list[Weights]:
    """Return the times of the run without the causes of findings."""
    ranks = {rank for one in findings for rank in _ranks(one)}
    if any(one.id in _UNEQUAL for one in findings):
        ranks = {one.rank for one in replay.job.programs if one.rank is not None}
    free = dict.fromkeys(name for one in findings for name in _WAITS.get(one.id, ()))
    change = replace(_like_others(ranks, findings), free=tuple(free))
    lost = _lost([one for one in findings if not _is_transfer(one)], _IN_INTERVALS)
    transfers = _lost([one for one in findings if _is_transfer(one)], _TRANSFERS)
    weights = replay.without(lost, transfers, change, _lost(findings, _WAITS))
    for one in findings:
        if one.intervals is not None and one.id in _LOOPS:
            weights = fused(replay.job, weights, one.intervals, _LOOPS[one.id])
        elif one.intervals is not None and one.fix == "fewer-calls":
            weights = fused(replay.job, weights, one.intervals, 0.0, COMMUNICATION)
    return weights


def _like_others(ranks: Collection[int], findings: Collection[Finding]) -> Change:
    """Return that ranks become like the others; layers that leave a pipeline stage go to them."""
    staged = {rank for one in findings if one.fix == "move-layers" for rank in _ranks(one)}
    late = (one for one in findings if one.id == "straggler")
    of_all = any(one.ranks and one.fix != "move-layers" for one in late)
    alike = tuple(sorted({*ranks} - staged))
    only_work = {one.id for one in findings if _is_of_ranks(one)} == {"unequal-work"}
    return Change(
        typical_ranks=alike, of_all=of_all, only_work=only_work, equal_stages=bool(staged)
    )


#: Why all gains together are less than their sum, by whether all are of the same steps.
_LESS = {
    True: ", less than their sum, because some time counts in several gains",
    False: ", less than their sum: some are means of all steps, some of those after the first, and "
    "time may count in several",
}


def notes(gains: Gains, time: DeviceTime) -> tuple[str, ...]:
    """Return what gains mean, those of all findings together, and findings without a gain.

    Args:
        gains: the findings.
        time: the lost time of all devices.
    """
    step = "step" if time.in_steps else "run"
    if gains.error_frac is None:
        timed = any(one.gain_basis for one in gains.findings)
        return (f"Gains are not known: {gains.why}.",) if gains.why and timed else ()
    replayed = [one for one in gains.findings if one.gain_basis == "replay"]
    if not (replayed or gains.without):
        return ()
    error = format_frac(abs(gains.error_frac))
    meaning = f"Gain: how much shorter a {step} would be without the cause, by a replay of the run"
    texts = [f"{meaning} (unchanged, it differs from the recording by {error}; see what-if)."]
    if gains.unprofiled_frac < 1:
        texts.append(UNPROFILED)
    if gains.sampled:
        texts.append(
            f"Gains are those of {gains.sampled}, times the lost time of all steps / that of these "
            "steps: there is more device work than diagnose replays."
        )
    count = time.windows["step"].n_unique()
    factor = count / (count - 1) if gains.after_first and count > 1 else 1.0
    by_mean, larger = (
        {one.id for one in replayed if (one.gain_ns or 0) > times * (one.cost_ns or inf)}
        for times in (1.0, _AS_MUCH * factor)
    )
    reasons = {
        "the cost is the mean of all steps, the gain that of the steps after the first":
            gains.after_first,
        "the cost is the mean of all GPUs, but a step ends with the slowest one":
            time.windows.n_unique(DEVICE) > 1,
        "the next transfer starts earlier if an overlapped one is shorter": larger & _OF_LINKS,
        "a host that does not wait launches later work earlier": larger - _OF_LINKS,
    }  # fmt: skip
    if by_mean:
        texts.append(f"A gain can exceed the cost: {'; '.join(filter(reasons.get, reasons))}.")
    if any(one.id == EXPOSED_ID for one in replayed):
        texts.append(
            "The gain of exposed communication is that of transfers that take no time, except (if "
            "overlap is to hide them) the last one of several reductions of a step."
        )
    if gains.together_ns > 0:
        per = " per step" if step == "step" else ""
        length = f"{format_ns(round(gains.together_ns))}{per}"
        sum_ns = sum(one.gain_ns or 0 for one in replayed)  # shares may be of different steps
        more = gains.together_frac * (1 - sum_ns / gains.together_ns)
        why = _LESS[gains.of_same_steps] * (more <= -NO_GAIN)
        if more >= NO_GAIN:
            why = ", more than their sum: without one cause, steps wait for the others"
        texts.append(f"All gains together: {length} ({format_frac(gains.together_frac)}){why}.")
    least = f"{100 * NO_GAIN:.0f} %"
    texts += [f"Off the critical path (gain below {least}): {one.title}" for one in gains.without]
    return tuple(texts)
