"""The program of a run, what waits for what, and its replay with changes.

``program`` builds the program of each rank from its trace; ``engine`` replays the programs of all
ranks; ``changes`` are what a fix would change.
"""
