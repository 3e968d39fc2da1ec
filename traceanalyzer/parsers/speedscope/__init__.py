"""speedscope's JSON: sampled and evented profiles, as py-spy and many others write it.

In: a JSON text. Out: ``sample`` events and the prefix tree of their frames, a lane a profile.
``model`` is the file's shape, ``profiles`` turns one profile into samples, ``parser`` makes the
tables.
"""
