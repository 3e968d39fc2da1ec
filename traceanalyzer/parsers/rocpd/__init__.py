"""Recordings of AMD GPUs: RPD files and databases of rocprofv3 (rocpd), both SQLite.

Input: a database file, possibly compressed, opened read-only. Output: a trace. ``parser``
recognises the file, ``reader`` builds the trace. RPD (``rocpd_op``) and rocprofv3
(``rocpd_kernel_dispatch``) use the same table prefix for different tables: ``rpd`` reads the first,
``v3`` the second with the columns that ``v3_tables`` joins. ``names`` has what they share: the kind
of an API call, the names of copies and ranges. Only ``registry`` may import ``parser``.
"""
