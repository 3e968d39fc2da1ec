"""Reading of SQLite databases, for every format that is one.

Input: a database file, possibly compressed, truncated or hostile. Output: columns of its tables.
``pages`` provides the file on disk and reads integers from its pages, ``database`` opens it
read-only and reads columns, ``rows`` builds ``events`` from the rows of all tables, ``issues``
reports what could not be read.
"""
