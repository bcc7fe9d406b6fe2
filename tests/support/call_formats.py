"""The formats of calls that are described by hand, by their names."""

from corosrv.formats.callformats.description import HERMES, LLAMA3, MISTRAL

FORMATS = {"hermes": HERMES, "mistral": MISTRAL, "llama3": LLAMA3}
