"""Answers /metrics: in Prometheus' own form, or in OpenMetrics, which has exemplars, for clients that prefer it.

Counters of several worker processes become one text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
from flask import Request, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_options_header

from corosrv.contracts.jobs.worker import BOUNDS
from corosrv.contracts.metrics import Exemplar, Exemplars, JobExemplars
from corosrv.dialects.llamacpp.metrics import with_token_counter
from corosrv.web.http.metrics import HttpStats
from corosrv.web.http.siblings import Siblings, is_repeated

_UNITS = ("seconds", "bytes")
_VERSIONS = ("", "0.0.1", "1.0.0")  # of OpenMetrics; of the first, only a preview was ever in use
_OPEN_METRICS = "application/openmetrics-text"
_END = b"# EOF\n"
_decode = msgspec.json.Decoder(list[tuple[str, str, int, Exemplar]]).decode


@dataclass(frozen=True)
class TextForm:
    """A form of /metrics. `end` stands once, after all families."""

    content_type: str
    write: Callable[[Collector], bytes]
    end: bytes = b""


class _WithUnits:
    """Reads counters, and tells the unit of each that its name ends in: Prometheus' own form has no units."""

    def __init__(self, counters: Collector) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        for metric in self._counters.collect():
            metric.unit = next((unit for unit in _UNITS if metric.name.endswith(f"_{unit}")), "")
            yield metric


def _write_open_metrics(counters: Collector) -> bytes:
    text: bytes = openmetrics.generate_latest(_WithUnits(counters))  # type: ignore[no-untyped-call]
    return text.removesuffix(_END)


PLAIN = TextForm("text/plain; version=0.0.4; charset=utf-8", generate_latest)
OPEN_METRICS = TextForm(f"{_OPEN_METRICS}; version=1.0.0; charset=utf-8", _write_open_metrics, _END)


def form_of(accept: MIMEAccept) -> TextForm:
    """Returns the form that a request's Accept prefers: Prometheus' own unless it names OpenMetrics."""
    wish = plain = 0.0
    for value, quality in accept:
        kind, options = parse_options_header(value)
        if kind == _OPEN_METRICS and options.get("version", "") in _VERSIONS:
            wish = max(wish, quality)
        elif kind in ("text/plain", "text/*"):
            plain = max(plain, quality)
    return OPEN_METRICS if wish > 0 and wish >= plain else PLAIN


class _OfFront:
    """Reads a registry, and adds to every series the label `front`, which says whose it is."""

    def __init__(self, registry: CollectorRegistry, front: int) -> None:
        self._registry = registry
        self._label = {"front": str(front)}

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample._replace(labels=sample.labels | self._label) for sample in metric.samples]
            yield metric


def answer(request: Request, stats: HttpStats, siblings: Siblings | None, exemplars: JobExemplars | None) -> Response:
    """Answers with the counters of all worker processes, and of the engines that they share. Waits for the others.

    `exemplars`: of the jobs of this process, where they are traced.
    """
    form = form_of(request.accept_mimetypes)
    if siblings is None:
        text = exposition(stats, form)
    else:
        text = _of_all(request, stats, siblings, None if form is PLAIN else exemplars, form)
    if form is PLAIN:
        text = with_token_counter(text)
    answer = Response(text, content_type=form.content_type)
    answer.vary.add("Accept")
    return answer


def _of_all(
    request: Request, stats: HttpStats, siblings: Siblings, exemplars: JobExemplars | None, form: TextForm
) -> bytes:
    own = of_front(stats, siblings.front, form)
    if is_repeated(request):
        return own if exemplars is None else with_exemplars(own, exemplars)
    others = [other.body for other in siblings.ask_others(request) if other.status == HTTPStatus.OK]
    if exemplars is not None:  # each has submitted jobs of its own to the engines whose histograms this one writes
        others = [take_exemplars(text, exemplars) for text in others]
    return together([own, *others, of_engines(stats, form)], form)


def exposition(stats: HttpStats, form: TextForm = PLAIN) -> bytes:
    """Writes all counters of a process."""
    return form.write(stats.registry) + form.write(stats.engines) + form.end


def of_engines(stats: HttpStats, form: TextForm = PLAIN) -> bytes:
    """Writes the counters of the decode loops that may be shared."""
    return form.write(stats.engines) + form.end


def of_front(stats: HttpStats, front: int, form: TextForm = PLAIN) -> bytes:
    """Writes the counters of one of several processes, whose number all series show, without those of the engines."""
    return form.write(_OfFront(stats.registry, front)) + form.end


def with_exemplars(text: bytes, exemplars: JobExemplars) -> bytes:
    """Adds the exemplars of a process's jobs behind the end of an exposition, for another process of its server."""
    rows = [(*key, bucket, exemplar) for key, known in exemplars.items() for bucket, exemplar in known.items()]
    return text + msgspec.json.encode(rows)


def take_exemplars(text: bytes, exemplars: JobExemplars) -> bytes:
    """Adopts the exemplars that another process has added to its exposition, and returns that."""
    families, end, rows = text.partition(_END)
    for model, name, bucket, exemplar in _decode(rows or b"[]"):
        exemplars.setdefault((model, name), Exemplars(BOUNDS)).adopt(bucket, exemplar)
    return families + end


def together(expositions: Iterable[bytes], form: TextForm = PLAIN) -> bytes:
    """Makes one exposition of several: the series of a family stand together, as Prometheus asks."""
    families: dict[bytes, list[bytes]] = {}  # the lines of series by the lines that begin a family
    for text in expositions:
        for family in re.split(rb"(?m)^(?=# HELP )", text.removesuffix(form.end))[1:]:
            head = re.match(rb"(?:# .*\n)*", family)
            assert head is not None
            families.setdefault(head[0], []).append(family[head.end() :])
    return b"".join(head + b"".join(series) for head, series in families.items()) + form.end
