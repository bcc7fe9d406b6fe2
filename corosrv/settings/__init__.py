"""The settings of a server and of what it serves: read once at the start, checked and frozen."""

from corosrv.settings.app import AppSettings, KserveSettings
from corosrv.settings.cluster import ClusterSettings
from corosrv.settings.hub import HubSettings
from corosrv.settings.images import ImageSettings
from corosrv.settings.loading import (
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
from corosrv.settings.management import OperatorSettings
from corosrv.settings.model import ModelSettings
from corosrv.settings.peers import PeerSettings
from corosrv.settings.predictor import PredictionSettings
from corosrv.settings.server import ServerSettings
from corosrv.settings.upstream import UpstreamSettings

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
