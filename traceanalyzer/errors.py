"""Every error the package raises on purpose.

::

    TraceAnalyzerError
    ├── InputError            a file cannot be used (exit 1)
    │   ├── UnreadableFile    the operating system refused it
    │   ├── UnknownFormat     no parser recognises its content
    │   └── MalformedInput    recognised, but nothing in it can be read
    ├── MissingData           the question needs something that was not recorded (exit 1)
    ├── OutputError           the answer cannot be written where asked (exit 1)
    ├── MissingExtra          what was asked for needs a package that is not installed (exit 1)
    └── OptionError           an option's value makes no sense (exit 2)

A message is one line: what file, where in it, what to do.
"""

from pathlib import Path


class TraceAnalyzerError(Exception):
    """Base of all errors of this package; ``str()`` is one line for the user."""

    exit_code = 1


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
        return (_rebuild, (type(self), self.path, self.what, self.where, self.hint))


class UnreadableFile(InputError):
    """The operating system would not let us read the file."""


class UnknownFormat(InputError):
    """No parser recognises the content."""


class MalformedInput(InputError):
    """The format is known, but nothing can be read from this file."""


class MissingData(TraceAnalyzerError):
    """The analysis needs something the profiler did not record.

    The message names the profiler option that would have recorded it.
    """


class OutputError(TraceAnalyzerError):
    """The result cannot be written where it was asked for."""


class MissingExtra(TraceAnalyzerError):
    """What was asked for needs a package of an extra, which is named as the extra is."""

    def __init__(self, what: str, extra: str) -> None:
        self.what, self.extra = what, extra
        super().__init__(
            f"{what} needs {extra}, which is not installed; pip install 'traceanalyzer[{extra}]'"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (MissingExtra, (self.what, self.extra))


class OptionError(TraceAnalyzerError):
    """An option's value makes no sense."""

    exit_code = 2


def _rebuild(
    cls: type[InputError], path: str, what: str, where: str | None, hint: str | None
) -> InputError:
    return cls(path, what, where=where, hint=hint)
