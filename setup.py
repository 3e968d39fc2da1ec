"""The C extension; everything else about the package is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "traceanalyzer.parsers.chrome_trace._scan",
            ["traceanalyzer/parsers/chrome_trace/_scan.c"],
            extra_compile_args=["-O3"],
            py_limited_api=True,  # one binary for every Python from 3.11 on
            optional=True,  # without a compiler the package reads the same, slower
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
