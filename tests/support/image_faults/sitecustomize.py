"""Gives encoders and decoders faults, where this folder is on PYTHONPATH: Python imports this file at its start.

To an encoder, an image of FATAL pixels' width is death when its encode begins. With one of SLOW pixels' width it waits
until the file that ENCODER_GATE names is there; with one of BUSY pixels' width it computes for ever. To a decoder, one
of CRASHING pixels' width is a segmentation fault; HANGING makes it wait for ever, and GREEDY take a gigabyte.
"""

import os
import signal
import sys
import time

FATAL, SLOW, BUSY = 57, 58, 59  # pixels
CRASHING, HANGING, GREEDY = 601, 602, 603


def _give_faults_to_encoder() -> None:
    from corosrv.images.encoder.mtmd import Projector

    encode = Projector.encode

    def faulty(self, width, height, pixels):
        if width == FATAL:
            os.kill(os.getpid(), signal.SIGKILL)
        while width == SLOW and not os.path.exists(os.environ["ENCODER_GATE"]):
            time.sleep(0.1)  # seldom enough to count as one that does not work, on a busy machine too
        while width == BUSY:
            pass
        return encode(self, width, height, pixels)

    Projector.encode = faulty


def _give_faults_to_decoder() -> None:
    from corosrv.images import decoding

    make_upright = decoding._upright

    def faulty(picture):
        if picture.width == CRASHING:
            os.kill(os.getpid(), signal.SIGSEGV)
        while picture.width == HANGING:
            time.sleep(60)
        if picture.width == GREEDY:
            bytearray(1 << 30)
        return make_upright(picture)

    decoding._upright = faulty


if "corosrv.images.encoder" in sys.orig_argv:
    _give_faults_to_encoder()
if "corosrv.images.decoder" in sys.orig_argv:
    _give_faults_to_decoder()
