"""The processes that decode images for all tests of this folder."""

from corosrv.images.decoders import DecoderPool

DECODERS = DecoderPool()
