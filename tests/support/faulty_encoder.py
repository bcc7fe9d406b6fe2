"""Faults of encoder processes, which tests/support/encoder_faults/sitecustomize.py gives them."""

from pathlib import Path

FATAL, SLOW = 57, 58  # pixels' width of an image that the process dies of, and of one that waits for the gate
FOLDER = Path(__file__).parent / "encoder_faults"


def environ(gate: Path) -> dict[str, str]:
    """The variables of a process that starts encoders with faults. `gate`: the file that slow images wait for."""
    return {"PYTHONPATH": str(FOLDER), "ENCODER_GATE": str(gate)}
