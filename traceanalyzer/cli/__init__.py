"""The command line: read, analyze, render, write; a command is a few lines.

Data goes to standard output or a file, progress and what was lost to standard error. ``main.run``
is the only place that catches errors. Nothing heavy is imported before a command runs.
"""
