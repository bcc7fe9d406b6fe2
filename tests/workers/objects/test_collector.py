"""Metrics of the store of objects."""

from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from corosrv.workers.objects import ObjectCollector, ObjectContent, ObjectStore


def test_the_store_tells_what_it_holds_and_what_went():
    store = ObjectStore(max_bytes=5)
    registry = CollectorRegistry()
    registry.register(ObjectCollector(store))
    for data in (b"123", b"45", b"6789"):
        store.create(ObjectContent(data), "", 0.0)

    lines = generate_latest(registry).decode().splitlines()

    assert {"corosrv_objects 1.0", "corosrv_objects_bytes 4.0", "corosrv_objects_evicted_total 2.0"} <= set(lines)
