"""Selection of events by name; each distinct name is tested once."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import polars as pl

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
    if not hits:
        return pl.lit(value=False)
    return pl.col("name").is_in(hits).fill_null(value=False)


def matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that match any of the regular expressions.

    Raises:
        OptionError: a pattern is not a regular expression.
    """
    test = _remembering(tuple(patterns))
    return [name for name in names if test(name)]


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


def one_name_for_steps(names: Iterable[str]) -> dict[str, str]:
    """Map the names of steps of PyTorch's profiler to :data:`ANY_STEP`."""
    return {name: ANY_STEP for name in names if _PROFILER_STEP.fullmatch(name)}


def one_name_for_numbers(names: Iterable[str]) -> dict[str, str]:
    """Map names of numbered steps, batches and epochs (``step 0``, ``step 1``) to ``step *``.

    Names with only one number are not mapped.
    """
    numbers = {name: match[1] for name in names if (match := _NUMBERED.fullmatch(name))}
    several = {plain for plain, n in Counter(numbers.values()).items() if n > 1}
    return {name: f"{plain}*" for name, plain in numbers.items() if plain in several}


@lru_cache(maxsize=256)
def _remembering(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Return a :func:`matcher` that remembers results: many analyses test the same names."""
    return lru_cache(maxsize=16_384)(matcher(patterns))


def matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Return a test whether a text matches any of the regular expressions anywhere.

    Raises:
        OptionError: a pattern is not a regular expression.
    """
    patterns = list(patterns)
    if "" in patterns:
        raise OptionError("an empty regular expression matches every name: leave it out")
    try:
        tests = [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        raise OptionError(f"{error.pattern!r} is not a regular expression: {error}") from None
    except (RecursionError, OverflowError):
        raise OptionError(
            "a regular expression is nested too deeply, or repeats too often"
        ) from None
    return lambda text: any(test.search(text) for test in tests)
