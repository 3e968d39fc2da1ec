"""What stands around the events: the top-level members that a trace's metadata gives."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import msgspec

from traceanalyzer.trace import Meta

if TYPE_CHECKING:
    from collections.abc import Sequence

_VERSION = "kineto schema "


def header_members(sources: Sequence[Meta]) -> str:
    """Kineto's top-level members and whatever else the file had, as JSON text without braces.

    Of a trace of several files only what all of them say is written.
    """
    meta = _in_common(sources)
    extra: dict[str, Any] = msgspec.json.decode(meta.extra) if meta.extra else {}
    job = {"backend": meta.backend, "rank": meta.rank, "world_size": meta.world_size}
    own = {
        "schemaVersion": _schema_version(meta.version),
        "deviceProperties": _devices(meta),
        "distributedInfo": {**extra.pop("distributedInfo", {}), **_known(job)},
        "baseTimeNanoseconds": meta.epoch_ns,
        "host_name": meta.host,
    }
    members = {**{key: value for key, value in own.items() if value not in (None, {}, [])}, **extra}
    return msgspec.json.encode(members).decode()[1:-1]


def _in_common(sources: Sequence[Meta]) -> Meta:
    first = sources[0]
    differing: dict[str, Any] = {
        f.name: f.default
        for f in fields(Meta)
        if f.name not in ("path", "format")
        and any(getattr(meta, f.name) != getattr(first, f.name) for meta in sources)
    }
    return replace(first, **differing)


def _schema_version(version: str | None) -> int | str | None:
    if version is None or not version.startswith(_VERSION):
        return None
    number = version.removeprefix(_VERSION)
    return int(number) if number.isdecimal() else number


def _devices(meta: Meta) -> list[dict[str, Any]]:
    return [
        _known({"id": device.id, "name": device.name, "totalGlobalMem": device.total_bytes})
        for device in meta.devices
    ]


def _known(members: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in members.items() if value is not None}
