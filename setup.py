"""The C extensions; everything else about the package is in pyproject.toml."""

from setuptools import Extension, setup

MODULES = ("chrome_trace/_scan", "collapsed/_frames", "nsys_sqlite/_pages")

setup(
    ext_modules=[
        Extension(
            f"traceanalyzer.parsers.{module.replace('/', '.')}",
            [f"traceanalyzer/parsers/{module}.c"],
            extra_compile_args=["-O3"],
            py_limited_api=True,  # one binary for every Python from 3.11 on
            optional=True,  # without a compiler the package reads the same, slower
        )
        for module in MODULES
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
