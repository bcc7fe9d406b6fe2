"""Models that take images: an encoder process, rows that arrive from it, and prompts in which they stand for images.

`engine` is the door: a model of the pool like any other, which puts rows where a prompt has images and hands the
prompt on to the engine. `encoder` shares the work among requests, `supervisor` keeps a process running, `link` is one
process, and `pump` runs the transfer core. `order`, `suspects`, `stability` and `cache` hold values and touch no clock.
"""
