"""Language models: the pool that a server loads them into, and the engine that decodes.

`pool` and `keeper` load models when they are asked for. `engine` is the native decode loop and its readers. `fitting`
decides how much of a model a device holds. `hub` downloads models.

Imports base, formats, contracts and workers.
"""
