"""Sends encoded spans to a collector over OTLP; the variables OTEL_EXPORTER_OTLP_* say to which, and how.

Imported only where traces are on, and OpenTelemetry is installed.
"""

from __future__ import annotations

import os

import urllib3
from opentelemetry.util.re import parse_env_headers

from corosrv.base import __version__
from corosrv.base.errors import SettingsError


class SpanSender:
    """Sends encoded spans to the collector that the variables OTEL_EXPORTER_OTLP_* name. Raises SettingsError."""

    def __init__(self) -> None:
        if (protocol := _variable("PROTOCOL")) not in ("", "http/protobuf"):
            raise SettingsError(
                f"OTEL_EXPORTER_OTLP_PROTOCOL: spans are sent over http/protobuf, not over {protocol!r}"
            )
        if (compression := _variable("COMPRESSION")) not in ("", "none"):
            raise SettingsError(f"OTEL_EXPORTER_OTLP_COMPRESSION: spans are sent as they are, not as {compression!r}")
        self._url = _endpoint()
        self._headers = {"Content-Type": "application/x-protobuf", "User-Agent": f"corosrv/{__version__}"}
        self._headers |= parse_env_headers(_variable("HEADERS"), liberal=True)
        try:
            timeout = urllib3.Timeout(total=float(_variable("TIMEOUT") or 10.0))  # seconds
        except ValueError as error:
            raise SettingsError(f"OTEL_EXPORTER_OTLP_TIMEOUT must be a number of seconds: {error}") from error
        files = {name: _variable(name.upper()) or None for name in ("certificate", "client_key", "client_certificate")}
        for name, path in files.items():
            if path is not None and not os.access(path, os.R_OK):
                raise SettingsError(f"OTEL_EXPORTER_OTLP_{name.upper()}: {path} cannot be read")
        # A collector's Retry-After may be long: later spans are worth more than those that it refused.
        retries = urllib3.Retry(
            2, backoff_factor=0.5, status_forcelist=(429, 502, 503, 504), allowed_methods=None, raise_on_status=False,
            respect_retry_after_header=False,
        )  # fmt: skip
        self._pool = urllib3.PoolManager(
            1, timeout=timeout, retries=retries, ca_certs=files["certificate"], cert_file=files["client_certificate"],
            key_file=files["client_key"],
        )  # fmt: skip

    def send(self, message: bytes) -> str:
        """Sends a message, and returns why it did not arrive; empty if it did. Waits."""
        try:
            answer = self._pool.request("POST", self._url, body=message, headers=self._headers)
        except urllib3.exceptions.HTTPError as error:
            return str(error)
        return "" if 200 <= answer.status < 300 else f"it answered {answer.status}"


def _variable(name: str) -> str:
    """Returns what is said for spans, or else for everything that is sent."""
    return os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}", "")


def _endpoint() -> str:
    for variable, path in (("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""), ("OTEL_EXPORTER_OTLP_ENDPOINT", "/v1/traces")):
        if url := os.environ.get(variable):
            if not url.startswith(("http://", "https://")):
                raise SettingsError(f"{variable} must be an http or https URL, not {url!r}")
            return url.rstrip("/") + path if path else url
    return "http://localhost:4318/v1/traces"
