"""Mutation tests: ``make mutants`` changes formulas and runs the tests.

A seeded sample of mutants is generated for every module with definitions, each with one comparison,
operator, constant or truth value changed in a function, and the module's own fast tests are run on
it. A mutant is killed when a test fails, or takes too long. Each runs in a fork of a process that
has loaded the libraries and started no thread of theirs.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "traceanalyzer"
_COMM = "comm_outliers_definitions comm_outliers_ranks comm_outliers_judge"
#: Modules and the tests that define what they compute.
TESTS: dict[str, str] = {
    "frames/slice_tree.py": "slice_tree",
    "frames/intervals.py": "intervals crowding common_parts",
    "frames/linking.py": "linking linking_ranges",
    "frames/nesting.py": "nesting common_host_code",
    "frames/numbering.py": "numbering intervals slice_tree annotations",
    "frames/stack_weights.py": "stack_weights ancestors",
    "frames/stacks.py": "stacks stack_weights",
    "analyzers/common/device_work.py": "common_parts overlap",
    "analyzers/common/kernel_names.py": "kernels kernels_names",
    "analyzers/common/libraries.py": "common_libraries",
    "analyzers/common/host_code.py": "common_host_code kernels_places heavy_kernels",
    "analyzers/comm_outliers/arrivals.py": f"{_COMM} comm_outliers_clocks comm_outliers_late",
    "analyzers/comm_outliers/matching.py": "comm_outliers_matching comm_outliers_ranks",
    "analyzers/comm_outliers/outliers.py": "comm_outliers_judge comm_outliers_links",
    "analyzers/kernels/compute.py": "kernels numbering kernels_graphs heavy_kernels",
    "analyzers/gpu_idle/compute.py": "gpu_idle gpu_idle_edges gpu_idle_longest",
    "analyzers/gpu_idle/host.py": "gpu_idle gpu_idle_edges gpu_idle_longest",
    "analyzers/py_spy_report/compute.py": "py_spy_report_frames py_spy_report common_libraries",
    "analyzers/memory/ledger.py": "memory_definitions memory memory_questions",
    "analyzers/memory/regions.py": "memory_regions memory_definitions memory_questions",
    "analyzers/launches/calls.py": "launches launches_edges",
    "analyzers/launches/launch_bound.py": "launches launches_edges",
    "analyzers/overlap/compute.py": "overlap",
    "analyzers/steps/result.py": "steps",
    "analyzers/annotations/compute.py": "annotations",
    "analyzers/cuda_api/compute.py": "cuda_api",
    "analyzers/transfers/compute.py": "transfers diagnosis_copies",
    "analyzers/replay/changes.py": "what_if what_if_pipeline follow",
    "analyzers/replay/engine.py": "what_if follow",
    "analyzers/replay/follow.py": "follow",
    "analyzers/replay/host.py": "what_if_host what_if",
    "analyzers/replay/program.py": "program what_if what_if_host",
    "analyzers/replay/sample.py": "what_if what_if_host",
    "analyzers/what_if/compute.py": "what_if what_if_pipeline",
    "analyzers/what_if/schedule.py": "what_if_pipeline",
    "findings/gains.py": "gains",
    "findings/hardware.py": "diagnosis_clocks",
    "findings/heavy_kernels.py": "heavy_kernels",
    "findings/judge.py": "diagnosis diagnosis_measured",
    "findings/communication.py": "diagnosis diagnosis_measured",
    "findings/device_time.py": "diagnosis diagnosis_stragglers",
    "findings/idle.py": "diagnosis diagnosis_measured",
    "findings/samples.py": "diagnosis diagnosis_measured",
    "findings/work.py": "diagnosis diagnosis_measured",
    "analyzers/diff/compared.py": "diff",
    "analyzers/diff/runs.py": "diff",
}
#: Seconds of CPU time, and of waiting, after which a mutant counts as killed: it does not end.
_CPU_PATIENCE, _PATIENCE = 60, 1200.0
# every case and all examples, as in ``make test-all``
_OPTIONS = (
    *("-x", "-q", "--assert=plain", "-p", "no:cacheprovider"),
    *("-m", "not fuzz", "--hypothesis-profile=mutants"),
)
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


def places(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes in functions that can be changed.

    Not ``strict=`` of a zip: it asserts that the code is right, and changes nothing where it is.
    """
    assertions = {
        keyword.value
        for keyword in ast.walk(tree)
        if isinstance(keyword, ast.keyword) and keyword.arg == "strict"
    }
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for statement in function.body:
            for node in ast.walk(statement):
                swapped = (
                    (isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPS)
                    or (isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _SWAPS)
                )  # fmt: skip
                number = (
                    isinstance(node, ast.Constant)
                    and type(node.value) in (int, bool)
                    and node not in assertions
                )
                if swapped or number or isinstance(node, ast.UnaryOp):
                    yield node


def change(node: ast.AST) -> None:
    """Change a node in place."""
    if isinstance(node, ast.Compare):
        node.ops[0] = _SWAPS[type(node.ops[0])]()  # type: ignore[assignment]
    elif isinstance(node, ast.BinOp | ast.BoolOp):
        node.op = _SWAPS[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.UnaryOp):  # "not x" and "~x" become x, twice negated; "-x" is "+x"
        negated = ast.UnaryOp(node.op, node.operand)
        node.op, node.operand = (
            (ast.UAdd(), node.operand) if isinstance(node.op, ast.USub) else (node.op, negated)
        )
    elif isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else int(node.value) + 1


def mutant(source: str, number: int) -> tuple[CodeType, str]:
    """The code with one place changed, and that place before and after."""
    tree = ast.parse(source)
    node = list(places(tree))[number]
    before = ast.unparse(node)
    change(node)
    after = ast.unparse(node)
    ast.fix_missing_locations(tree)
    code = compile(tree, "mutant", "exec", dont_inherit=True)
    return code, f"line {getattr(node, 'lineno', 0)}: {before} -> {after}"


def test_files(module: str) -> list[str]:
    """The tests of a module."""
    tests = [(ROOT / "tests").rglob(f"test_{name}.py") for name in TESTS[module].split()]
    return [str(next(paths)) for paths in tests]


def run(path: Path, code: CodeType, tests: list[str]) -> bool:
    """Whether the tests of a module fail when it is this code."""
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_PATIENCE, _CPU_PATIENCE))
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        original = SourceFileLoader.get_code

        def get_code(self: SourceFileLoader, name: str) -> CodeType | None:
            return code if Path(self.path) == path else original(self, name)

        SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
        import pytest

        os._exit(int(pytest.main([*_OPTIONS, *tests]) != 0))
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status != 0
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def main() -> None:
    """Generate and test mutants, print the surviving ones and the number of killed ones."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("modules", nargs="*", default=list(TESTS))
    options.add_argument("--each", type=int, default=12, help="mutants of each module")
    options.add_argument("--seed", type=int, default=0)
    arguments = options.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    import polars  # noqa: F401 - loaded once, for all forks
    import pytest  # noqa: F401
    from hypothesis import Phase, settings

    # any failing example is enough: no shrinking
    once = (Phase.explicit, Phase.generate)
    settings.register_profile("mutants", deadline=None, phases=once, database=None)
    killed = total = 0
    for module in arguments.modules:
        path, tests = PACKAGE / module, test_files(module)
        source = path.read_text(encoding="utf-8")
        count = len(list(places(ast.parse(source))))
        chance = random.Random(f"{arguments.seed} {module}")
        chosen = sorted(chance.sample(range(count), min(count, arguments.each)))
        if run(path, compile(source, str(path), "exec", dont_inherit=True), tests):
            sys.exit(f"{module}: its tests fail as it is")
        lived = []
        for number in chosen:
            code, change = mutant(source, number)
            if not run(path, code, tests):
                lived.append(change)
        killed, total = killed + len(chosen) - len(lived), total + len(chosen)
        print(
            f"{module}: {len(chosen) - len(lived)} of {len(chosen)} killed ({count} there)",
            flush=True,
        )
        for change in lived:
            print(f"    lives: {change}", flush=True)
    print(f"{killed} of {total} mutants killed, {100 * killed / max(total, 1):.1f} %")


if __name__ == "__main__":
    main()
