"""Demangled names of kernels, cut to what tells them apart.

A kernel of a template library is called by a page of types. People know it by its function and by
what it was given: ``vectorized_elementwise_kernel<4,CUDAFunctor_add<float>>``.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import lru_cache

#: Longer names are cut before they are looked into: no compiler writes them, and time is finite.
_LONGEST = 4_000

_OPEN, _CLOSE = "<([{", ">)]}"

#: Ways in which compilers and profilers write one thing: (pattern, instead).
_SPELLINGS = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"\(anonymous namespace\)::|<unnamed>::|\(unnamed\)::|_GLOBAL__N_1::", ""),
        (r"\((?:int|bool|unsigned int|unsigned long|long|char)\)(?=-?\d)", ""),
        (r"\[lambda\(([^()\[\]]*)\) \(instance (\d+)\)\]", r"{lambda(\1)#\2}"),
        (r"operator \(\)", "operator()"),
        (r"^std::enable_if<.*?>::type ", ""),
        (r"^void ", ""),
        (r"(\d)ul?\b", r"\1"),
    )
)

#: A function object made in place: the function that made it, and the types that it takes.
_LAMBDA = re.compile(
    r"""
    (\w+) (?:<[^<>]*(?:<[^<>]*>)?[^<>]*>)? (?:::operator\(\))? \([^()]*\) (?:[ ]const)?
    (?:::\{lambda\([^()]*\)\#\d+\}::operator\(\)\(\)[ ]const)*
    ::\{lambda\(([^()]*)\)\#\d+\}
    """,
    re.VERBOSE,
)
_WRAPPED = re.compile(r"\bgpu_(?:index_)?kernel_impl(?:_nocast)?<")
#: Kernels that only start the one they are given.
_LAUNCHERS = ("kernel", "Kernel", "Kernel2", "device_kernel")

#: Template arguments that say little by themselves: numbers, truths, types of numbers.
_PLAIN = re.compile(
    r"-?\d+|true|false|void|(?:unsigned |signed )?(?:char|short|int|long)|float\d*|double|half|bool"
    r"|(?:__)?(?:nv_)?b?float16(?:_t)?|BFloat16|Half|Float8_\w+|\(\w+\)\d+"
)
_QUALIFIER = re.compile(r"\b\w+::")

#: Arguments that are much the same for every kernel of their sort.
_PLUMBING = re.compile(
    r",\s*(?:[Aa]rray<char\s*\*,[ ]\d+>"
    r"|(?:Trivial)?OffsetCalculator<[^<>]*(?:<[^<>]*>)?[^<>]*>"
    r"|(?:Load|Store)With(?:out)?Cast(?:<\d+>)?)"
)

#: Copies and sets; and Tensile on AMD: what is multiplied, and the tile, the rest is how.
_WHOLE = re.compile(r"(?i:memcpy|memset|copy)\w* .*|Cijk_\w*?_MT\d+x\d+x\d+")


@lru_cache(maxsize=65_536)
def function(name: str) -> str:
    """The function with its namespaces, without template arguments and parameters."""
    return _parts(name)[0]


def short_names(names: Iterable[str]) -> dict[str, str]:
    """A short name for each name: the function, and the template arguments that tell.

    Numbers and plain types that all kernels of one function share are left out; names that are
    still the same are numbered: ``gemm<64,true>``, ``gemm<128,true> [2]``.
    """
    alike: defaultdict[tuple[str, int], dict[str, list[str]]] = defaultdict(dict)
    for name in sorted(set(names)):
        called, arguments = _brief(name)
        alike[called, len(arguments)][name] = arguments
    found: dict[str, str] = {}
    taken: Counter[str] = Counter()
    for (called, _), group in alike.items():
        told = [
            not (_is_plain(own[0]) and len(set(own)) == 1)
            for own in zip(*group.values(), strict=True)
        ]
        for name, arguments in group.items():
            pairs = zip(arguments, told, strict=True)
            kept = ",".join(argument for argument, tells in pairs if tells)
            brief = f"{called}<{kept}>" if kept else called
            taken[brief] += 1
            found[name] = brief if taken[brief] == 1 else f"{brief} [{taken[brief]}]"
    return found


@lru_cache(maxsize=65_536)
def _brief(name: str) -> tuple[str, list[str]]:
    """The function without namespaces, and its template arguments without plumbing."""
    whole = _WHOLE.match(name)
    if whole:
        return whole[0], []
    called, arguments = _parts(name)
    plain = called.rsplit("::", 1)[-1]
    told = _PLUMBING.sub("", _QUALIFIER.sub("", _told(arguments)))
    given = _split(re.sub(r"\s*([<>,])\s*", r"\1", told).strip())
    if plain in _LAUNCHERS and len(given) == 1:
        return given[0], []
    return plain or name, given


def _split(arguments: str) -> list[str]:
    """Arguments that commas part, outside of all brackets."""
    parts, depth = [""], 0
    for letter in arguments:
        depth += (letter in _OPEN) - (letter in _CLOSE)
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts if arguments else []


def _is_plain(argument: str) -> bool:
    return _PLAIN.fullmatch(argument) is not None


def _parts(name: str) -> tuple[str, str]:
    """The function with its namespaces, and its template arguments."""
    text = name[:_LONGEST]
    if text.startswith("_Z"):
        return _mangled(text), ""
    for pattern, instead in _SPELLINGS:
        text = pattern.sub(instead, text)
    called, arguments, at = "", "", 0
    while at < len(text) and text[at] != "(":
        if text[at] == "<":
            end = _closing(text, at)
            arguments = text[at + 1 : end]
            at = end + 1
        else:
            called += text[at]
            at += 1
    return called.strip(), arguments


def _closing(text: str, at: int) -> int:
    """Where the bracket at a place is closed; the end where it never is."""
    depth = 0
    for place in range(at, len(text)):
        if text[place] in _OPEN:
            depth += 1
        elif text[place] in _CLOSE and text[place - 1] != "-":
            depth -= 1
            if not depth:
                return place
    return len(text)


def _told(arguments: str) -> str:
    """Template arguments with function objects named by the function that made them."""
    wrapped = _WRAPPED.search(arguments)
    if wrapped:
        end = _closing(arguments, wrapped.end() - 1)
        arguments = arguments[: wrapped.start()] + arguments[wrapped.end() : end]
    return _LAMBDA.sub(r"\1(\2)", arguments)


def _mangled(name: str) -> str:
    """The identifiers at the start of a mangled name: ``_ZN2ck4gemm`` is ``ck::gemm``."""
    found = []
    at = 3 if name.startswith(("_ZN", "_ZL")) else 2
    while number := re.match(r"\d+", name[at:]):
        start = at + number.end()
        at = start + int(number[0])
        found.append(name[start:at])
    return "::".join(word for word in found if word != "_GLOBAL__N_1") or name
