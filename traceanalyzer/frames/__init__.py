"""The algebra below every analysis: frame in, frame out, no word of the domain.

In go polars frames whose rows are intervals (``start``, ``end``), points (``ts``) or ids, and the
names of the columns that keep groups apart; out come new frames of exact Int64, inputs untouched.
It imports polars and numpy only and knows no other room; analyzers are the ones to import it.
``intervals``: union, gaps, overlap. ``nesting``: depth, parent, self time. ``holding``: the same
where slices overlap in part. ``linking``: joins. ``stacks``: prefix trees.
``stack_weights``: call trees merged, inverted, cut, split.
"""
