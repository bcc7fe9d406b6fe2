"""The settings of a server, its models and its predictor: read once at the start, checked and frozen."""

from corosrv.settings.predictor import PredictionSettings
from corosrv.settings.server import Settings, load, load_predictor, unknown_variables

__all__ = ["PredictionSettings", "Settings", "load", "load_predictor", "unknown_variables"]
