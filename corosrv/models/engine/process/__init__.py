"""An engine in a process of its own, which several fronts share: the process, and the fronts' side of it.

A front connects to the engine's socket in the run directory, and starts the process if there is none. The process ends
soon after its last front has left. If it dies, a front starts another one and resumes what ran.
"""
