"""Exceptions of the package.

::

    TraceAnalyzerError
    ├── InputError            a file cannot be used (exit 1)
    │   ├── UnreadableFile    the file cannot be read
    │   ├── UnknownFormat     no parser recognises its content
    │   └── MalformedInput    known format, but nothing in it can be read
    ├── MissingData           required data was not recorded (exit 1)
    ├── OutputError           the output cannot be written (exit 1)
    ├── MissingExtra          a required package is not installed (exit 1)
    ├── PluginError           an analysis of another package cannot be used (exit 1)
    └── OptionError           invalid value of an option (exit 2)

A message is one line: the file, the problem, where it is, what to do.
"""

import re
from functools import partial
from pathlib import Path

# names of files and texts of traces are in messages
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class TraceAnalyzerError(Exception):
    """Base of all errors of this package; ``str()`` is one line for the user."""

    exit_code = 1

    def __str__(self) -> str:
        return _CONTROL.sub(lambda one: repr(one[0])[1:-1], super().__str__())


class InputError(TraceAnalyzerError):
    """A file cannot be used: ``PATH: WHAT (at WHERE); HINT``."""

    def __init__(
        self, path: str | Path, what: str, *, where: str | None = None, hint: str | None = None
    ) -> None:
        self.path, self.what, self.where, self.hint = str(path), what, where, hint
        place = f" (at {where})" if where else ""
        advice = f"; {hint}" if hint else ""
        super().__init__(f"{path}: {what}{place}{advice}")

    def __reduce__(self) -> tuple[object, ...]:
        whole = partial(type(self), self.path, self.what, where=self.where, hint=self.hint)
        return (whole, ())


class UnreadableFile(InputError):
    """The file cannot be read: it is missing, not permitted, or not a file."""


class UnknownFormat(InputError):
    """No parser recognises the content."""


class MalformedInput(InputError):
    """The format is known, but nothing can be read from this file."""


class MissingData(TraceAnalyzerError):
    """The analysis needs data that the profiler did not record.

    The message names the profiler option that would have recorded it.
    """


class OutputError(TraceAnalyzerError):
    """The output cannot be written."""


class MissingExtra(TraceAnalyzerError):
    """A feature needs a package that is not installed by default, the extra of the same name."""

    def __init__(self, what: str, extra: str) -> None:
        self.what, self.extra = what, extra
        super().__init__(f"{what} needs {extra}, which is not installed; pip install {extra}")

    def __reduce__(self) -> tuple[object, ...]:
        return (MissingExtra, (self.what, self.extra))


class PluginError(TraceAnalyzerError):
    """An analysis of another package cannot be imported."""


class OptionError(TraceAnalyzerError):
    """An option has an invalid value."""

    exit_code = 2
