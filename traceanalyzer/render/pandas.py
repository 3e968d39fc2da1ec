"""Frames for pandas, which is loaded here and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from traceanalyzer.errors import MissingExtra

if TYPE_CHECKING:
    import pandas as pd

_WORDS = (pl.Categorical, pl.Enum)
_WHOLE = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")


def to_pandas(frame: pl.DataFrame) -> pd.DataFrame:
    """The frame for pandas: whole numbers stay whole beside nulls, nanoseconds exact.

    Integers and booleans get pandas' nullable types: its others would make a column of nanoseconds
    with a null one of floats. Enums become categories in their order.

    Raises:
        MissingExtra: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtra("to_pandas()", "pandas") from None
    nullable = {pa.type_for_alias(name.lower()): pd.api.types.pandas_dtype(name) for name in _WHOLE}
    nullable[pa.bool_()] = pd.BooleanDtype()
    # not as Arrow's dictionaries: pyarrow 17 does not convert those that polars makes
    words = {name: dtype for name, dtype in frame.schema.items() if dtype in _WORDS}
    plain = frame.with_columns(pl.col(name).cast(pl.String) for name in words)
    converted: pd.DataFrame = plain.to_arrow().to_pandas(types_mapper=nullable.get)
    return converted.astype({name: _category(dtype) for name, dtype in words.items()})


def _category(dtype: pl.DataType) -> Any:
    import pandas as pd

    if isinstance(dtype, pl.Enum):
        return pd.CategoricalDtype(dtype.categories.to_list(), ordered=True)
    return pd.CategoricalDtype()
