"""What a thread does in a function in which it only waits, by the name of the function."""

import re
from functools import lru_cache

from traceanalyzer.analyzers.common.libraries import is_native
from traceanalyzer.analyzers.common.names import BUILT_IN
from traceanalyzer.files import packaged
from traceanalyzer.vocabulary import INFERENCE_ENGINES

SLEEPS, DRIVER, LOCK = "sleeps", "waits for the driver", "waits for a lock"
FILE_LOCK = "waits for a file lock"
RETRY = "waits to repeat a failed request"
THREAD = "waits for another thread"
QUEUE = "waits for an item of a queue"
PROCESS = "waits for another process"
DATA = "waits for data from a pipe, a socket or another process"
REQUESTS = "waits for requests"
ENGINE = "waits for the next step from the engine's process"
DISK = "swaps tensors from or to disk"
KV_TRANSFER = "waits for a transfer of the KV cache"
DEVICE, RANKS = "waits for the GPU", "waits for other ranks"
FULL_QUEUE = "waits for the GPU (its launch queue is full)"
EVENTS = "waits for events (idle event loop)"
UNKNOWN = "waits in a function written in C"
#: A method of an object written in C, whose name does not show what it waits for.
_OF_OBJECT = re.compile(r"^<(?:built-in )?method wait of PyCapsule")
_OF_QUEUE = re.compile(r"^<(?:built-in )?method get of _queue\.SimpleQueue")
#: Waits of servers for any of their connections.
_EVENT_LOOP = r"epoll|kevent|select|gradio|queueing\.py|serve_forever"

#: Calls of the OS runtime and functions written in C, by what they do.
_C_FUNCTIONS = {
    SLEEPS: r"(?:u|nano|clock_nano)?sleep",
    DRIVER: r"ioctl",
    DEVICE: r"_cuda_synchronize",
    LOCK: r"pthread_(?:mutex|rwlock|spin)_\w*lock|(?:r?lock\.)?acquire|lll_lock_wait",
    THREAD: r"pthread_(?:cond|barrier)_\w*wait|pthread_(?:timed|clock)?join(?:_np)?"
    r"|sem_(?:timed|clock)?wait|futex(?:_\w*wait\w*)?|_wait_for_tstate_lock",
    FILE_LOCK: r"flock|lockf",
    PROCESS: r"wait(?:pid|id|3|4)?",
    DATA: r"p?poll|p?select|epoll_p?wait2?|epoll\.poll|kevent|recv(?:from|m?msg|_into)?"
    r"|accept4?|connect|sched_yield",
    KV_TRANSFER: r"(?i)[\w.]*(?:load|recv|receive|send|transfer|pull)_?kv(?:_?(?:cache|blocks?))?"
    r"|[\w.]*kv_?(?:cache_?)?(?:transfer|recv|receive|load|pull)|wait_for_layer_load",
}
#: Functions of inference engines, and of servers by name, in which they only wait for requests.
WAITS_FOR_REQUESTS = (
    rf"(?:(?:{INFERENCE_ENGINES})[/\\].*\.py(?:\(\d+\))?: (?:_process_input_queue"
    r"|_?(?:recv|get|fetch|poll|wait)\w*_requests?)"
    r"|\b\w+\.py(?:\(\d+\))?: _?wait_for_(?:request|(?:any|new|next)_requests?))$"
)
#: Functions that take an item of a queue of threads, processes or coroutines.
TAKES = r"(?:queue|asyncio[/\\]queues|multiprocessing[/\\]queues)\.py(?:\(\d+\))?: (?:\w+\.)*get$"
#: Functions of DeepSpeed that wait for reads or writes of a disk (ZeRO-Infinity).
_SWAPS = r"swap_tensor[/\\]\w+\.py(?:\(\d+\))?: (?:_?swap_(?:in|out)\w*|synchronize_\w+)"
#: Modules of engines that pass the KV cache from prefill to decode instances.
_TRANSFERS_KV = (
    r"(?:kv_transfer|kv_connector|disaggregation|mooncake|nixl|lmcache)[/\\].*\.py(?:\(\d+\))?: \w+"
)
#: Functions that start a process and wait for its end.
_STARTS = r"(?:^|[/\\])subprocess\.py(?:\(\d+\))?: (?:run|call|check_call|check_output)$"
#: Functions that only sleep before a failed request is repeated.
_RETRIES = (
    r"(?:urllib3/util/retry|tenacity/nap)\.py(?:\(\d+\))?: (?:\w+\.)*_?sleep\w*"
    r"|(?:openai|anthropic)/_base_client\.py(?:\(\d+\))?: (?:\w+\.)*_sleep_for_retry"
)
#: Functions whose names show the reason of a wait better than what they call.
WAITS_AROUND = (WAITS_FOR_REQUESTS, _SWAPS, _TRANSFERS_KV, _STARTS, _RETRIES)
#: Functions of the standard library and of inference engines, by module.
_MODULES = {
    RETRY: rf"{_RETRIES}|huggingface_hub/utils/_http\.py: _?http_backoff\w*"
    r"|(?:tenacity/__init__|backoff/_sync|google/api_core/retry(?:/\w+)?)"
    r"\.py: (?:retry|retry_target|sleep|__call__)",
    DISK: _SWAPS,
    REQUESTS: WAITS_FOR_REQUESTS,
    KV_TRANSFER: _TRANSFERS_KV,
    ENGINE: r"shm_broadcast\.py: (?:dequeue|acquire_read)",
    FILE_LOCK: r"(?:filelock|fasteners|portalocker)/\w+\.py: _?(?:acquire|lock|do_acquire)"
    r"|torch/utils/file_baton\.py: wait",
    PROCESS: r"subprocess\.py: (?:run|(?:check_)?call|check_output|(?:_try)?_?wait|_?communicate)"
    r"|multiprocessing/(?:popen_\w+\.py: (?:wait|poll|_wait)|process\.py: join)"
    r"|ray/_private/worker\.py: (?:get|get_objects|wait)",
    RANKS: r"torch/distributed/distributed_c10d\.py: (?:\w*barrier|[a-z]\w+_object(?:_list)?)",
    QUEUE: TAKES,
    THREAD: r"(?:threading|queue|_base)\.py: (?:wait|join|acquire|put|result"
    r"|_wait_for_tstate_lock)|gevent/_threading\.py: wait"
    r"|multiprocessing/(?:queues|pool|synchronize)\.py: (?:get|join|wait)",
    DATA: r"multiprocessing/connection\.py: (?:_?recv\w*|wait|_?poll)|selectors\.py: select"
    r"|(?:socket|ssl)\.py: (?:recv\w*|readinto|accept|read)"
    r"|gevent/_?(?:gevent_c)?_?hub\w*\.py: (?:switch|wait|run|join)",
}
_BY_NAME = [(what, re.compile(pattern)) for what, pattern in _C_FUNCTIONS.items()]
_BY_MODULE = [(what, re.compile(rf"(?:^|[/\\])(?:{p})$")) for what, p in _MODULES.items()]
#: What a C library adds to names: ``__GI___poll``, ``pthread_cond_wait@@GLIBC_2.3.2``.
_ADDED = re.compile(r"^__+(?:GI_+)?(?:libc_)?|(?:@.*|_nocancel|_cancel)$")
#: A Python frame as a slice: ``threading.py(1095): join``.
_SLICE = re.compile(r"^(.*)\(\d+\): (.+)$")


@lru_cache(maxsize=16_384)
def wait_of(name: str, file: str | None = None) -> str | None:
    """Return what a thread does in a function in which it only waits; None for other functions.

    Args:
        name: the function, the call of the OS runtime, or a frame in Kineto's spelling:
            ``join``, ``usleep``, ``<built-in function sleep>``, ``threading.py(1095): join``.
        file: the file of a sampled frame, if it has one.
    """
    if _OF_QUEUE.match(name):
        return QUEUE
    if built_in := BUILT_IN.match(name):
        return UNKNOWN if _OF_OBJECT.match(name) else _of_c_function(built_in[1])
    if file is None and (frame := _SLICE.match(name)):
        file, name = frame.groups()
    if file is None or file.strip("<>") == "built-in" or is_native(file):
        return _of_c_function(name)
    text = f"{file}: {name.rsplit('.', 1)[-1]}".replace("\\", "/")
    return next((what for what, test in _BY_MODULE if test.search(text)), None)


def _of_c_function(name: str) -> str | None:
    name = _ADDED.sub("", name)
    return next((what for what, test in _BY_NAME if test.fullmatch(name)), None)


def may_be_for_requests(wait: str | None, names: str) -> bool:
    """Whether a wait in functions of these names may end with a request to a server."""
    is_loop = wait in (DATA, THREAD) and bool(re.search(_EVENT_LOOP, names))
    return is_loop or wait in (REQUESTS, QUEUE)


def advice(wait: str, meanwhile: str = "") -> str:
    """Return the change that fits a wait.

    Args:
        wait: what the thread waits for.
        meanwhile: what another thread of Python runs during the wait.
    """
    other = meanwhile and wait in (QUEUE, THREAD, LOCK)
    return ADVICE["meanwhile"].format(meanwhile) if other else ADVICE[wait]


#: Advice for each kind of wait.
ADVICE: dict[str, str] = packaged("analyzers/common/waits.toml")
