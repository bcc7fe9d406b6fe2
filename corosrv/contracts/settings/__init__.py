"""The settings of a server and of what it serves: read once at the start, checked and frozen."""

from corosrv.contracts.settings.app import AppSettings, KserveSettings
from corosrv.contracts.settings.cluster import ClusterSettings
from corosrv.contracts.settings.hub import HubSettings
from corosrv.contracts.settings.images import ImageSettings
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
from corosrv.contracts.settings.management import OperatorSettings
from corosrv.contracts.settings.model import ModelSettings
from corosrv.contracts.settings.peers import PeerSettings
from corosrv.contracts.settings.predictor import PredictionSettings
from corosrv.contracts.settings.server import ServerSettings
from corosrv.contracts.settings.upstream import UpstreamSettings

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
