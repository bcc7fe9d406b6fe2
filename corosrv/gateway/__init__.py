"""Requests that another server answers: models of upstreams, and calls that a full queue hands on.

`forwarding` serves models of other servers beside those of this one. `delegation` gives calls to other fronts.

Imports all wings but serving.
"""
