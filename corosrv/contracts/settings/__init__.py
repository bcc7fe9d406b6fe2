"""The settings of a server and of what it serves: read once at the start, checked and frozen."""

from corosrv.contracts.settings.fleet import ClusterSettings, PeerSettings, UpstreamSettings
from corosrv.contracts.settings.handlers import AppSettings, KserveSettings, PredictionSettings
from corosrv.contracts.settings.loading import (
    PARTS,
    Settings,
    assemble,
    child_environment,
    load,
    load_hub,
    load_predictor,
    unknown_variables,
    with_nearest,
)
from corosrv.contracts.settings.model import ModelSettings
from corosrv.contracts.settings.model_list import HubSettings
from corosrv.contracts.settings.server import ImageSettings, OperatorSettings, ServerSettings

__all__ = [
    "PARTS",
    "AppSettings",
    "ClusterSettings",
    "HubSettings",
    "ImageSettings",
    "KserveSettings",
    "ModelSettings",
    "OperatorSettings",
    "PeerSettings",
    "PredictionSettings",
    "ServerSettings",
    "Settings",
    "UpstreamSettings",
    "assemble",
    "child_environment",
    "load",
    "load_hub",
    "load_predictor",
    "unknown_variables",
    "with_nearest",
]
