"""Generic algorithms on frames, independent of the domain.

Input: polars frames whose rows are intervals (``start``, ``end``), points (``ts``) or ids, and the
names of the grouping columns. Output: new frames with exact Int64; inputs are not modified. Imports
polars and numpy only; imported by analyzers and parsers.
``intervals``: union, gaps, overlap. ``nesting``: depth, parent, self time. ``slice_tree``: the same
for slices with partial overlap. ``linking``: joins. ``stacks``: prefix trees.
``stack_weights``: merge, invert, prune and split call trees.
"""
