"""Classification of Python frames: own code, standard library, or installed package.

Profilers record only a file. py-spy strips the longest matching entry of ``sys.path``, so
``torch/nn/modules/conv.py`` and ``threading.py`` are common, and look like the user's ``train.py``;
with ``--full-filenames`` the folder identifies the package. The result does not depend on the
machine that reads the profile.
"""

import re
import sys
from collections.abc import Callable, Sequence

#: Returns the library of a file, or None if it belongs to none of the requested libraries.
Matcher = Callable[[str | None], str | None]

#: Where installed packages are, or a source tree of PyTorch (its packages, not a user's folder).
_INSTALLED = re.compile(
    r"(?:^|[/\\])(?:site|dist)-packages[/\\]"
    r"|[/\\](?=torch[/\\](?:_[a-z]\w*|autograd|distributed|nn|optim)[/\\])"
)
_STANDARD = re.compile(
    r"(?:[/\\]lib(?:64|32)?[/\\]python\d+(?:\.\d+)?t?|^[A-Za-z]:.*[/\\][Ll]ib)[/\\](?=\w)"
)
_NATIVE = re.compile(
    r"\.(?:so(?:\.[\d.]+)?|dll|dylib|pyd|exe|out)$|^\[|^(?:ld|lib)[\w.+-]*$"
    r"|(?:^|/)python[\d.]*t?$"
    # a program, or the script that starts a package: a path without a suffix; versions are none
    r"|^(?:/(?:.*/)?|bin/)(?:[^/.]|\.(?=\d))+$"
)
_SEPARATOR = re.compile(r"[/\\]")
_SOURCE = re.compile(r"\.(?:py|pyx|pxd|pyi|ipynb)$")
# code compiled by torch.fx: <eval_with_key>.5 from /a/b.py:21 in wrap, or shortened by a profiler
_COMPILED = re.compile(r"^<eval_with_key>|\.py:\d+ in \w+$|[/\\]torchinductor_[^/\\]+[/\\]")
# sources of libraries built elsewhere: their paths do not identify the library
_C_SOURCE = re.compile(r"\.(?:c|cc|cpp|cxx|cu|cuh|h|hh|hpp|inl)$")
_TYPED_IN = re.compile(r"<(?:stdin|ipython-input-.*|ipykernel.*)>|.*[/\\]ipykernel_\d+[/\\]\d+\.py")

STANDARD_LIBRARY = "standard library"

#: Modules of the standard library of any Python since 3.8.
_STANDARD_MODULES = sys.stdlib_module_names | frozenset(
    ("asynchat", "asyncore", "binhex", "cgi", "cgitb", "distutils", "imp", "pipes", "smtpd")
)

#: Third-party packages that are recognized in shortened paths.
KNOWN_PACKAGES = frozenset(  # two hundred words are easier to read without quotes
    """
    _distutils_hack IPython OpenSSL PIL SimpleITK absl accelerate aiohttp albumentations anyio apex
    asttokens attr attrs audioread av bert_score bitsandbytes boto3 botocore cachetools certifi cffi
    charset_normalizer click cloudpickle colorama coloredlogs composer cryptography cupy cv2 dask
    datasets debugpy decorator decord deepspeed dill distributed docker duckdb einops evaluate
    fairscale fastapi filelock fire flash_attn flashinfer flax fsspec gcsfs gevent git google grpc
    gymnasium h11 h5py haiku horovod httpcore httpx huggingface_hub hydra imageio ipykernel jiwer
    jax jaxlib jedi jinja2 joblib jsonschema keras kornia librosa lightning lightning_fabric
    lightning_utilities llguidance llvmlite lmdb lmdeploy lmformatenforcer loguru lxml markdown
    matplotlib megatron mlflow monai mpi4py mpmath msgpack msgspec multidict multiprocess netCDF4
    networkx nibabel ninja nltk numba numexpr numpy nvidia omegaconf onnx onnxruntime openai optax
    optuna orbax orjson outlines outlines_core packaging pandas parso peft pexpect pip pkg_resources
    pluggy polars prompt_toolkit psutil py_spy pycocotools pyarrow pycparser pydantic pydantic_core
    pydicom pygments pynvml pytest pytorch_lightning pytz rapidfuzz rasterio ray regex requests rich
    rouge rouge_score ruamel s3fs sacrebleu safetensors scipy seaborn sentencepiece sentry_sdk
    setuptools sglang skimage sklearn smmap soundfile spacy sqlalchemy starlette statsmodels
    streaming sympy tables tensorboard tensorboardX tensordict tensorflow tensorrt_llm tensorstore
    textual threadpoolctl tifffile tiktoken timm tokenizers torch torch_geometric torch_scatter
    torchaudio torchdata torchgen torchmetrics torchrl torchtext torchvision torio tornado tqdm
    traitlets transformer_engine transformers triton trl typer typing_extensions urllib3 uvicorn
    uvloop vllm wandb webdataset websockets wrapt xarray xformers xgboost xgrammar xxhash yaml yarl
    zarr zmq zstandard bs4 catboost celery clearml comet_ml confluent_kafka cudf cuml dateutil
    django elasticsearch faiss flask gradio gradio_client jwt lightgbm neptune openpyxl
    opentelemetry pika prometheus_client prometheus_fastapi_instrumentator psycopg2 pymongo redis
    rmm streamlit swanlab tenacity watchdog werkzeug
    """.split()  # noqa: SIM905
)


def package_of(file: str | None) -> str | None:
    """Return the package of a file, :data:`STANDARD_LIBRARY`, a native library, or None.

    For an absolute path outside installed packages it is the folder. None for a missing file, and
    for scripts (files without a folder).
    """
    if file in (None, "", "?"):
        return None
    if is_native(file):
        return _SEPARATOR.split(file)[-1]
    if file.startswith("<frozen "):
        return STANDARD_LIBRARY
    if _COMPILED.search(file):
        return "torch"
    if file.startswith("<"):
        return None
    parts = inside(file)
    first = _SOURCE.sub("", parts[0])
    if _is_standard(file, first):
        return STANDARD_LIBRARY
    if _is_absolute(file) and not _INSTALLED.search(file):
        return parts[-2] if len(parts) > 1 else None
    return first if len(parts) > 1 or first in KNOWN_PACKAGES else None


def is_own_code(name: str | None, file: str | None) -> bool:
    """Whether a frame is the user's own code: in a file that is not of a known library.

    Own code is outside the standard library, installed packages (``site-packages``, or
    :data:`KNOWN_PACKAGES` in shortened paths), native libraries and C or C++ sources. Code typed in
    counts too: ``<stdin>``, a notebook cell, the module of ``python -c``.
    """
    if file in (None, "", "?") or is_native(file):
        return False
    if _TYPED_IN.fullmatch(file) or (file == "<string>" and name == "<module>"):
        return True
    if file.startswith("<") or _INSTALLED.search(file) or _COMPILED.search(file):
        return False
    if _C_SOURCE.search(file):
        return False
    first = _SOURCE.sub("", inside(file)[0])
    return not _is_standard(file, first) and (_is_absolute(file) or first not in KNOWN_PACKAGES)


#: Functions at the start of native stacks, of Python's interpreter, and of runtimes and libraries.
_STARTS, _INTERPRETER = r"^_*(?:libc_start|start_thread$|start$|clone3?$)", r"^_*Py(?:Eval|_Run)"
_JAVA, _OF_KERNEL = r"_\[j\]$|^Java(?:Main|Calls)", re.compile(r"_\[k\]$")
_RUNTIME = re.compile(
    r"^(?:void |bool |int |auto )?[*& ]*(?:\W|_?start|0x|main(?:\W|$)|(?:ld|lib|python)[\w.+-]*$"
    r"|_*(?:Py|THP|GI_|IO_|libc_|clone|int_\w*(?:alloc|free)|[mc]alloc|realloc|c?free|sys|do_|x64_"
    r"|mem(?:cpy|move|set|cmp)|m(?:un)?map|pthread|futex|entry_|sched|gnu_|cxx|kmpc?_|gomp|omp_|GOMP)"
    r"|operator (?:new|delete)|(?:cu|nccl|hip|hsa|roc|mkl|dnnl|jit_|[sdch]gemm)\w*"
    r"|py::.*(?:-packages/|/lib/python|:<)"
    r"|(?:std|core|alloc|__gnu_cxx|at|c10|torch|caffe2|pybind11|Eigen|cv|thrust|cub|tbb|xla|absl|boost)::)"
)


def code_of_native(names: Sequence[str]) -> list[bool]:
    """Whether frames without files are functions of the program, not of runtimes and libraries.

    Some frame starts a native stack. Below Python, only names of C++ are of an extension.
    """
    tests = (_STARTS, _INTERPRETER, _JAVA)
    starts, python, java = (any(re.search(one, name) for name in names) for one in tests)
    return [
        starts and not (java or _RUNTIME.match(name) or _OF_KERNEL.search(name))
        and (not python or "(" in name or "::" in name)
        for name in names
    ]  # fmt: skip


def is_native(file: str) -> bool:
    """Whether the "file" of a frame is a shared library or a program, not source.

    A program is an absolute path without a suffix, as nsys writes it; a script without a suffix
    cannot be distinguished.
    """
    return _NATIVE.search(file) is not None and not _SOURCE.search(file)


def by_component(libraries: Sequence[str]) -> Matcher:
    """Return a matcher by whole path components, so that ``torch`` is not ``torchvision``.

    A name is a folder, a module, or several joined by dots or slashes (``torch.nn``). In a path
    through ``site-packages`` only the components after it count: names of users and environments
    are not libraries. The first matching library in the list wins.
    """
    paths = [(name, re.split(r"[./\\]", name)) for name in libraries]

    def match(file: str | None) -> str | None:
        if not file:
            return None
        parts = inside(file)
        parts[-1] = _SOURCE.sub("", parts[-1])
        return next((name for name, path in paths if _contains(parts, path)), None)

    return match


def by_substring(libraries: Sequence[str]) -> Matcher:
    """Return a matcher by substring of the path, as in itwinai's report."""

    def match(file: str | None) -> str | None:
        return next((name for name in libraries if file and name in file), None)

    return match


def inside(file: str) -> list[str]:
    """Return the components of a path after the folder of installed libraries, if any."""
    for folder in (_INSTALLED, _STANDARD):
        matches = list(folder.finditer(file))
        if matches:
            file = file[matches[-1].end() :]
            break
    return [part for part in _SEPARATOR.split(file) if part not in ("", ".")] or [file]


def _is_standard(file: str, first: str) -> bool:
    if _INSTALLED.search(file):
        return False
    return (_STANDARD.search(file) is not None or not _is_absolute(file)) and (
        first in _STANDARD_MODULES
    )


def _is_absolute(file: str) -> bool:
    return file.startswith(("/", "\\")) or file[1:2] == ":"


def _contains(parts: Sequence[str], path: Sequence[str]) -> bool:
    return any(parts[at : at + len(path)] == path for at in range(len(parts) - len(path) + 1))
