"""Places fronts, engines and pools on a Ray cluster, and keeps them there: the commands `corosrv ray`.

Nothing of it is part of a server: its actors run corosrv's own commands as child processes. Only a call of one of the
commands imports ray.
"""
