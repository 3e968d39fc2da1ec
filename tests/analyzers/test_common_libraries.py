"""Classification of frames as own code or library by their file."""

import pytest

from traceanalyzer.analyzers.common.libraries import (
    STANDARD_LIBRARY,
    by_component,
    by_substring,
    is_own_code,
    package_of,
)

VENV = "/home/ada/itwinai/venv/lib/python3.11"


@pytest.mark.parametrize(
    ("file", "package", "expected"),
    [
        ("train.py", None, True),
        ("/train.py", None, True),
        ("toytrain/model.py", "toytrain", True),
        ("torch/nn/modules/conv.py", "torch", False),
        ("numpy/lib/__init__.py", "numpy", False),
        ("pydicom/filereader.py", "pydicom", False),
        ("threading.py", STANDARD_LIBRARY, False),
        ("distutils/core.py", STANDARD_LIBRARY, False),
        ("<frozen importlib._bootstrap>", STANDARD_LIBRARY, False),
        ("/usr/lib/python3.11/json/decoder.py", STANDARD_LIBRARY, False),
        ("/home/ada/train/json/decoder.py", "json", True),
        (f"{VENV}/site-packages/oddlib/core.py", "oddlib", False),
        (f"{VENV}/threading.py", STANDARD_LIBRARY, False),
        (r"C:\Python311\Lib\threading.py", STANDARD_LIBRARY, False),
        (r"C:\Users\ada\train.py", "ada", True),
        ("libc.so.6", "libc.so.6", False),
        ("/opt/x/libcudart.so.12.1", "libcudart.so.12.1", False),
        ("/usr/bin/python3.11", "python3.11", False),
        ("python3.13t", "python3.13t", False),
        ("/home/ada/bin/saxpy-mpi-cuda", "saxpy-mpi-cuda", False),
        ("/home/ada/a.out", "a.out", False),
        ("/home/ada/v1.2/train", "train", False),
        ("/home/ada/train.sh", "ada", True),
        ("/home/ada/python/train.py", "python", True),
        ("/home/ada/pytorch/torch/distributed/distributed_c10d.py", "torch", False),
        ("/opt/torch/_dynamo/eval_frame.py", "torch", False),
        ("/home/ada/torch/train.py", "torch", True),
        ("flameshow", None, True),
        ("[vdso]", "[vdso]", False),
        ("<eval_with_key>.5", "torch", False),
        ("<eval_with_key>.5 from /a/b.py:21 in wrap", "torch", False),
        ("b.py:21 in wrap", "torch", False),
        ("<string>", None, False),
        ("<stdin>", None, True),
        ("/run/ipykernel_12/3456.py", "ipykernel_12", True),
        ("?", None, False),
        ("", None, False),
        (None, None, False),
    ],
)
def test_package_and_own_code_of_file(
    file: str | None, package: str | None, expected: bool
) -> None:
    assert package_of(file) == package
    assert is_own_code("f", file) is expected


def test_module_of_python_c_is_own_code() -> None:
    assert is_own_code("<module>", "<string>")


@pytest.mark.parametrize(
    ("file", "library"),
    [
        ("torch/nn/modules/conv.py", "torch"),
        ("torchvision/ops.py", None),
        ("torch.py", "torch"),
        ("/home/torch/train.py", "torch"),
        (f"{VENV}/site-packages/torch/_ops.py", "torch"),
        ("/home/torch/venv/lib/python3.11/site-packages/numpy/core.py", None),
        (r"C:\torch\x.py", "torch"),
        (None, None),
    ],
)
def test_library_matches_whole_components(file: str | None, library: str | None) -> None:
    assert by_component(["torch"])(file) == library


def test_dotted_names_match_consecutive_components() -> None:
    match = by_component(["torch.nn", "torch/optim"])
    assert match("torch/nn/functional.py") == "torch.nn"
    assert match("torch/optim/adam.py") == "torch/optim"
    assert match("torch/x/nn/functional.py") is None


def test_first_listed_library_wins() -> None:
    assert by_component(["modules", "torch"])("torch/nn/modules/conv.py") == "modules"
    assert by_component(["torch", "modules"])("torch/nn/modules/conv.py") == "torch"
    assert by_substring(["conv", "torch"])("torch/nn/modules/conv.py") == "conv"


def test_substrings_match_anywhere() -> None:
    assert by_substring(["torch"])("torchvision/ops.py") == "torch"
    assert [by_substring(["conv", "torch"])(file) for file in ("numpy/core.py", "", None)] == [
        None
    ] * 3
