"""The settings of a server, its models and its predictor: read once at the start, checked and frozen."""

from corosrv.settings.loading import PARTS, Settings, load, load_predictor, unknown_variables
from corosrv.settings.model import ModelSettings
from corosrv.settings.predictor import PredictionSettings
from corosrv.settings.server import ServerSettings

__all__ = [
    "PARTS",
    "ModelSettings",
    "PredictionSettings",
    "ServerSettings",
    "Settings",
    "load",
    "load_predictor",
    "unknown_variables",
]
