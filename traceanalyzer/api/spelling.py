"""Functions that take ``**reading``, spelled out for ``help()``, for completion and for callers."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import Any, get_type_hints

_SHORT = "**reading: see :class:`~traceanalyzer.api.gathering.Reading`."


def spelled_out(function: Any) -> Any:
    """The function with the keywords that ``**reading`` stands for in signature and docstring.

    A keyword that is none of them is refused, as Python does where each is named. A function
    without ``**reading`` is returned as it is.
    """
    signature = inspect.signature(function)
    *others, last = signature.parameters.values()
    if last.kind is not inspect.Parameter.VAR_KEYWORD:
        return function
    from traceanalyzer.api.gathering import Reading  # whoever takes them has loaded it

    keywords = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
        for name, hint in get_type_hints(Reading).items()
    ]
    whole = signature.replace(parameters=[*others, *keywords])

    @wraps(function)
    def answer(*args: Any, **options: Any) -> Any:
        whole.bind(*args, **options)
        return function(*args, **options)

    answer.__signature__ = whole  # type: ignore[attr-defined]
    meanings = inspect.getdoc(Reading)
    if function.__doc__ and meanings:  # python -OO has none
        told = meanings.partition("Attributes:\n")[2].strip().replace("\n", "\n    ")
        answer.__doc__ = function.__doc__.replace(_SHORT, told)
    return answer
