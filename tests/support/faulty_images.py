"""Faults of the processes that images go through, which tests/support/image_faults/sitecustomize.py gives them."""

from pathlib import Path

# Pixels' width of an image that the encoder dies of, of one that waits for the gate, and of one that has no end.
FATAL, SLOW, BUSY = 57, 58, 59
CRASHING, HANGING, GREEDY = 601, 602, 603  # of images that end their decoder, never end there, or take a gigabyte
FOLDER = Path(__file__).parent / "image_faults"


def environ(gate: Path) -> dict[str, str]:
    """The variables of a process that starts encoders with faults. `gate`: the file that slow images wait for."""
    return {"PYTHONPATH": str(FOLDER), "ENCODER_GATE": str(gate)}
