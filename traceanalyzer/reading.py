"""Import path for other packages, see ``docs/extending.md``."""

from traceanalyzer.run.find import find_inputs
from traceanalyzer.run.read import read
from traceanalyzer.trace import Inputs

__all__ = ["Inputs", "find_inputs", "read"]
