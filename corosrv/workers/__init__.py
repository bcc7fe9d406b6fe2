"""Code of authors in processes of their own: predictors and handlers, and who gets which call.

`worker` runs such a process, both ends of it. `wire` has the messages between the ends. `dispatch` queues calls and
chooses the handler. `manager` keeps pools of processes at their size. `objects` holds results in shared memory.

Imports base, formats and contracts.
"""
