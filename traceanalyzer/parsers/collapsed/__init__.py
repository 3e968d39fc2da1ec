"""Collapsed ("folded") stacks: py-spy's raw format, FlameGraph's and inferno's, Austin's.

In: text, a sample a line: frames joined by ``;``, outermost first, then a count. Out: a ``sample``
event a line and the prefix tree of its frames. ``text`` gives whole lines of UTF-8, ``dialect``
tells from the first of them which dialect it is, ``labels`` reads process and thread frames,
``frame_text`` splits a frame into function, file and line, ``lines`` turns lines into numbers, and
``parser`` makes the tables.
"""
