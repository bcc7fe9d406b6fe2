"""The settings of a server and of what it serves: read once at the start, checked and frozen."""

from corosrv.contracts.settings.access import McpServer, is_plain_url
from corosrv.contracts.settings.fleet import ClusterSettings, PeerSettings, UpstreamSettings
from corosrv.contracts.settings.handlers import AppSettings, KserveSettings, PredictionSettings
from corosrv.contracts.settings.key_file import (
    DEFAULT_TIER,
    TIERS,
    KeyEntry,
    add_key,
    read_keys,
    remove_key,
    signature_of,
)
from corosrv.contracts.settings.loading import (
    PARTS,
    Settings,
    assemble,
    child_environment,
    load,
    load_hub,
    unknown_variables,
    with_nearest,
)
from corosrv.contracts.settings.model import ModelSettings
from corosrv.contracts.settings.model_list import HubSettings
from corosrv.contracts.settings.sampling import (
    SamplingSettings,
    parse_biases,
    parse_samplers,
    parse_sampling,
    parse_texts,
)
from corosrv.contracts.settings.server import ImageSettings, OperatorSettings, ServerSettings

__all__ = [
    "DEFAULT_TIER",
    "PARTS",
    "TIERS",
    "AppSettings",
    "ClusterSettings",
    "HubSettings",
    "ImageSettings",
    "KeyEntry",
    "KserveSettings",
    "McpServer",
    "ModelSettings",
    "OperatorSettings",
    "PeerSettings",
    "PredictionSettings",
    "SamplingSettings",
    "ServerSettings",
    "Settings",
    "UpstreamSettings",
    "add_key",
    "assemble",
    "child_environment",
    "is_plain_url",
    "load",
    "load_hub",
    "parse_biases",
    "parse_samplers",
    "parse_sampling",
    "parse_texts",
    "read_keys",
    "remove_key",
    "signature_of",
    "unknown_variables",
    "with_nearest",
]
