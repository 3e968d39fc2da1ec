"""Selection of events by name; each distinct name is tested once."""

import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import compress
from typing import Any

import polars as pl
from polars.exceptions import ComputeError

from traceanalyzer.errors import OptionError
from traceanalyzer.frames import numbering
from traceanalyzer.vocabulary import PROFILER_STEP, PYTHON_FRAMES, steps_pattern

#: The address of an object, which makes equal names different.
ADDRESS = r" at 0x[0-9a-f]+"

#: Common name of all steps of PyTorch's profiler.
ANY_STEP = f"{PROFILER_STEP[:-1]}*"

#: Operators of layers, which backward passes do not call: these have operators of their own.
LAYERS = (
    r"^aten::(?:linear|conv[123]d|layer_norm|rms_norm|batch_norm|group_norm|embedding|gelu|silu"
    r"|scaled_dot_product_attention)$"
)
#: The node of a backward pass that computes the activations of a part of a model again.
CHECKPOINT = r"^CheckpointFunctionBackward$"
#: The operator around each node of a backward pass.
BACKWARD = r"^autograd::engine::evaluate_function: "

#: Fewer rows are processed in Python, which is faster than a query.
_FEW = 1000
#: Results for more names are not remembered.
_MANY = 16_384
#: Repetitions for which Python may need exponential time.
_REPEATED = re.compile(r"[*+}].*[*+}]|\)[*+{]", re.DOTALL)
#: In polars a boundary of a word, in Python the character.
_WORD_BOUNDARY = ("\\<", "\\>")
#: Most time of a regular expression that only Python has.
_LIMIT_S = 10

_NUMBERED = re.compile(
    r"((?i:(?:\w+[ _-])?(?:step|iter(?:ation)?|(?:(?:micro|mini)[ _-]?)?batch|epoch))"
    r"[ _:#=-]*)\d+"
)
_PROFILER_STEP = re.compile(rf"{PROFILER_STEP}\d+")


def mapped(
    values: pl.Series,
    function: Callable[[str], object],
    dtype: pl.DataType | type[pl.DataType] = pl.String,
) -> pl.Series:
    """Apply a function of text to a column, once per distinct value; null stays null."""
    if len(values) < _FEW:
        texts = values.to_list()
        result = {text: function(text) for text in dict.fromkeys(texts) if text is not None}
        return pl.Series(values.name, [result.get(text) for text in texts], dtype)
    first, number = numbering.numbered([values])
    texts = values[first].to_list()
    results = [None if text is None else function(text) for text in texts]
    return pl.Series(values.name, results, dtype)[number]


def python_frame(text: pl.Expr) -> pl.Expr:
    """Parse ``file``, ``line`` and ``name`` of Python functions from names of slices.

    Null if a name is not of a Python function. Call it with distinct names.
    """
    parsed = [text.str.extract_groups(pattern).struct for pattern in PYTHON_FRAMES]
    return pl.struct(
        file=pl.coalesce(fields.field("file") for fields in parsed),
        line=pl.coalesce(fields.field("line") for fields in parsed).cast(pl.Int32),
        name=pl.coalesce(fields.field("name") for fields in parsed),
    )


#: Names of Python functions as slices, with the line before the function.
_FRAMES = [re.compile(pattern.replace("?<", "?P<")) for pattern in PYTHON_FRAMES[:2]]


#: A function in C: ``<built-in function sleep>``, ``<method 'acquire' of '_thread.lock' objects>``.
BUILT_IN = re.compile(r"^<(?:built-in )?(?:function|method) '?([\w.]+)")


def frame_text(name: str) -> str:
    """Return the name of a Python function as ``function (file:line)``; other names unchanged.

    A function written in C has no line: ``recv_into``.
    """
    if built_in := BUILT_IN.match(name):
        return built_in[1]
    match = next(filter(None, (frame.match(name) for frame in _FRAMES)), None)
    return f"{match['name']} ({match['file']}:{match['line']})" if match else name


def launched_by(place: Mapping[str, Any]) -> str:
    """Return the operators around the launch call, else the annotation, as a phrase."""
    operator, outer, annotation = (place.get(k) for k in ("operator", "outer", "annotation"))
    if operator:
        node = (outer or operator).removeprefix(BACKWARD[1:])
        around = [node] * (outer != operator) + [annotation] * bool(annotation)
        within = "".join(f" in {name}" for name in around)
        return f", launched by {operator.removeprefix(BACKWARD[1:])}{within}"
    return f", launched in {annotation}" if annotation else ""


def called_in(place: Mapping[str, Any]) -> str:
    """Return the function or annotation around nearly all launches, and the own code, as a phrase.

    `` in set_module_tensor_to_device (accelerate/utils/modeling.py:310), forward (flux.py:480)``.
    """
    names = [frame_text(place[k]) for k in ("called", "code") if place.get(k)]
    return f" in {', '.join(names)}" if names else ""


def called_from(place: Mapping[str, Any]) -> list[str]:
    """Return the line of own code that launches a kernel as sentences."""
    return [f"Called from {frame_text(place['code'])}."] if place.get("code") else []


def named(events: pl.DataFrame | Sequence[str], patterns: Sequence[str]) -> pl.Expr:
    """Whether an event's ``name`` matches any of the regular expressions.

    Args:
        events: the events, or their :func:`distinct` names if called often.
        patterns: the regular expressions.

    Raises:
        OptionError: a pattern is not a regular expression.
    """
    names = distinct(events) if isinstance(events, pl.DataFrame) else events
    hits = matching(names, patterns)
    return pl.lit(value=False) if not hits else _any_of(tuple(hits))


@lru_cache(maxsize=256)
def _any_of(names: tuple[str, ...]) -> pl.Expr:
    """Return the filter of events with one of the names; files of many ranks have the same ones."""
    return pl.col("name").is_in(names).fill_null(value=False)


def matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that match any of the regular expressions.

    Raises:
        OptionError: a pattern is not a regular expression.
    """
    texts, chosen = list(names), tuple(patterns)
    if len(texts) > _MANY:
        return [*compress(texts, matches(texts, chosen))]
    known = _known(chosen)
    if new := [name for name in texts if name not in known]:
        if len(known) > _MANY:
            known.clear()
            new = texts
        known.update(zip(new, matches(new, chosen), strict=True))
    return [name for name in texts if known[name]]


def starting_with(*prefixes: str) -> str:
    """Return the regular expression of names that start with a prefix."""
    return f"^(?:{'|'.join(prefixes)})"


def is_step(events: pl.DataFrame) -> pl.Expr:
    """Whether an event is named like a training step."""
    return named(events, [steps_pattern()])


def distinct(events: pl.DataFrame) -> list[str]:
    """Return the distinct names of events."""
    if events.height < _FEW:
        return [name for name in dict.fromkeys(events["name"].to_list()) if name is not None]
    names = events["name"].unique().cast(pl.String).to_list()
    return [name for name in names if name is not None]


def without_addresses(names: Iterable[str]) -> dict[str, str]:
    """Map names with the address of an object (``acquire of lock object at 0x7f``) to others."""
    return {name: re.sub(ADDRESS, "", name) for name in names if " at 0x" in name}


def one_name_for_steps(names: Collection[str]) -> dict[str, str]:
    """Map names of numbered steps, batches and epochs (``step 0``, ``step 1``) to ``step *``.

    Steps of PyTorch's profiler are :data:`ANY_STEP`. Other names with one number are not mapped.
    """
    numbers = {name: match[1] for name in names if (match := _NUMBERED.fullmatch(name))}
    several = {plain for plain, n in Counter(numbers.values()).items() if n > 1}
    steps = {name: ANY_STEP for name in names if _PROFILER_STEP.fullmatch(name)}
    return steps | {name: f"{plain}*" for name, plain in numbers.items() if plain in several}


def one_name_for_numbers(names: Collection[str]) -> dict[str, str]:
    """Map ranges whose names differ by the number at their end to one: ``IO 3`` to ``IO *``.

    Steps of PyTorch's profiler are :data:`ANY_STEP`.
    """
    plain = {name: _LAST_NUMBER.sub(r"\1*", name) for name in names}
    several = Counter(plain.values())
    return {name: n for name, n in plain.items() if several[n] > 1} | one_name_for_steps(names)


#: The number at the end of a name.
_LAST_NUMBER = re.compile(r"([ _#:=-])\d+$")


@lru_cache(maxsize=256)
def _known(patterns: tuple[str, ...]) -> dict[str, bool]:
    """Return the results so far of these patterns: many analyses test the same names."""
    matcher(patterns)
    return {}


def matches(texts: Sequence[str], patterns: Sequence[str]) -> list[bool]:
    """Return whether each text matches any of the regular expressions anywhere.

    Time is linear in the text, except for lookaround and references to groups, which polars does
    not have; these are limited to :data:`_LIMIT_S` seconds on the main thread.

    Raises:
        OptionError: a pattern is not a regular expression, or takes too long.
    """
    test = matcher(patterns)
    if len(texts) < _FEW and not any(map(_REPEATED.search, patterns)):
        return [*map(test, texts)]
    column = pl.Series(texts, dtype=pl.String)
    hits = pl.repeat(value=False, n=len(texts), eager=True, dtype=pl.Boolean)
    for pattern in patterns:
        try:
            if any(one in pattern for one in _WORD_BOUNDARY):
                raise ComputeError
            hits |= column.str.contains(pattern)
        except ComputeError:
            with _limited(pattern):
                hits |= _in_python(column, pattern)
    return hits.to_list()


#: ``(?!...)`` outside brackets, without groups in groups.
_PART = r"[^()\[\\]|\\.|\[(?:[^\]\\]|\\.)+\]"
_NOT_FOLLOWED = re.compile(rf"(?<!\\)\(\?!(?:{_PART}|\((?:{_PART})*\))*\)")


def _in_python(column: pl.Series, pattern: str) -> pl.Series:
    """Return which texts match a pattern with lookaround; first those that match without it."""
    candidates, relaxed = column, _NOT_FOLLOWED.sub("", pattern)
    if relaxed != pattern and not any(one in pattern for one in (*_WORD_BOUNDARY, "[(?!")):
        with suppress(ComputeError):
            candidates = column.filter(column.str.contains(relaxed))
    test = matcher([pattern])
    return column.is_in([one for one in candidates if test(one)])


@contextmanager
def _limited(pattern: str) -> Iterator[None]:
    """Limit the time of a regular expression; only the main thread can be interrupted.

    Raises:
        OptionError: it takes too long.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return

    def stop(*_: object) -> None:
        raise OptionError(
            f"{pattern!r} takes more than {_LIMIT_S} s; write it without nested repetitions"
        )

    before = signal.signal(signal.SIGALRM, stop)
    timer = signal.setitimer(signal.ITIMER_REAL, _LIMIT_S)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Return a test whether a text matches any of the regular expressions anywhere.

    For patterns of the program; :func:`matches` limits the time of those of users.

    Raises:
        OptionError: a pattern is not a regular expression.
    """
    patterns = list(patterns)
    if "" in patterns:
        raise OptionError("an empty regular expression matches every name: leave it out")
    try:
        tests = [re.compile(pattern) for pattern in patterns]
    except (re.error, TypeError) as error:
        pattern = getattr(error, "pattern", patterns)
        raise OptionError(f"{pattern!r} is not a regular expression: {error}") from None
    except (RecursionError, OverflowError):
        raise OptionError(
            "a regular expression is nested too deeply, or repeats too often"
        ) from None
    return lambda text: any(test.search(text) for test in tests)
