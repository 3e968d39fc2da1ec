"""The C extensions; everything else about the package is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

MODULES = (
    "analyzers/replay/_follow",
    "parsers/chrome_trace/_scan",
    "parsers/collapsed/_frames",
    "parsers/memory_snapshot/_machine",
    "parsers/perfetto/_wire",
    "parsers/sqlite/_pages",
)

setup(
    ext_modules=[
        Extension(
            f"traceanalyzer.{module.replace('/', '.')}",
            [f"traceanalyzer/{module}.c"],
            depends=[str(header) for header in Path("traceanalyzer").glob(f"{module}*.h")],
            extra_compile_args=["-O3"],
            py_limited_api=True,  # one binary for every Python from 3.11 on
            optional=True,  # without a compiler: no Perfetto traces, no replays
        )
        for module in MODULES
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
