"""The C extensions; everything else about the package is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

MODULES = (
    "chrome_trace/_scan",
    "collapsed/_frames",
    "memory_snapshot/_machine",
    "perfetto/_wire",
    "sqlite/_pages",
)

setup(
    ext_modules=[
        Extension(
            f"traceanalyzer.parsers.{module.replace('/', '.')}",
            [f"traceanalyzer/parsers/{module}.c"],
            depends=[str(header) for header in Path("traceanalyzer/parsers").glob(f"{module}*.h")],
            extra_compile_args=["-O3"],
            py_limited_api=True,  # one binary for every Python from 3.11 on
            optional=True,  # without a compiler: all formats but Perfetto's, slower
        )
        for module in MODULES
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
