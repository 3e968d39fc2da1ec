"""The command line: read, analyze, render, write; a command is a few lines.

Data goes to standard output or a file; progress and data loss go to standard error. Only
``main.run`` catches errors. Nothing heavy is imported before a command runs.
"""
