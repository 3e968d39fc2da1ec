"""CUDA memory snapshots, as ``torch.cuda.memory._dump_snapshot`` pickles them.

``machine`` runs the opcodes of a pickle that a snapshot may hold, and no others, and makes columns
of words instead of objects; ``layout`` says which dicts become rows; ``words`` turns words into
numbers and texts; ``stacks``, ``history``, ``marks`` and ``holdings`` make the tables;
``reader`` puts them together and says what is missing or odd. Only ``registry`` may import
``parser``.
"""
