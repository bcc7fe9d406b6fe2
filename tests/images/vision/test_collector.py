"""The numbers of encoders, as Prometheus reads them."""

from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest

from corosrv.images.transfer.session import TransferResult
from corosrv.images.transfer.stats import IgnoredReason, TransferStats
from corosrv.images.vision.encoder import EncoderStats
from corosrv.images.vision.models import TransferCollector

TRANSFERS = TransferStats(
    n_free=1,
    n_in_use=2,
    n_quarantined=3,
    n_active=4,
    n_queued=5,
    staging_bytes=6,
    n_rounds=7,
    n_rows=8,
    grant_blocks={1: 2, 4: 1, 100: 1},
    rounds_per_item={3: 2},
    seconds={"queue": 0.5, "encode": 1.5},
    drain_seconds=9.5,
    finished={TransferResult.SUCCESS: 10, TransferResult.LOST: 11},
    ignored={IgnoredReason.LATE: 12},
    n_not_finite=13,
    n_kills=14,
)
STATS = EncoderStats(TRANSFERS, n_restarts=15, n_kills=16, n_cache_hits=17, cache_bytes=18, is_degraded=True)


def exposed(**by_model: EncoderStats) -> dict[str, float]:
    """Each line of the exposition without the prefix, and its number."""
    registry = CollectorRegistry()
    registry.register(TransferCollector(lambda: by_model))
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {
        name.removeprefix("corosrv_transfer_"): float(value) for name, _, value in (x.rpartition(" ") for x in lines)
    }


def test_each_number_has_its_name():
    numbers = exposed(m=STATS)

    assert {name.replace('{model="m"}', ""): value for name, value in numbers.items() if name.count('="') == 1} == {
        "active": 4,
        "queued": 5,
        "staging_bytes": 6,
        "cache_bytes": 18,
        "degraded": 1,
        "rounds_total": 7,
        "rows_total": 8,
        "not_finite_total": 13,
        "drain_seconds_total": 9.5,
        "encoder_restarts_total": 15,
        "encoder_kills_total": 16,
        "cached_images_total": 17,
        "grant_blocks_count": 4,
        "grant_blocks_sum": 106,
        "rounds_per_item_count": 2,
        "rounds_per_item_sum": 6,
    }


def test_blocks_times_results_and_dropped_messages_are_told_by_kind():
    numbers = exposed(m=STATS)

    def of(name: str, label: str) -> dict[str, float]:
        head = f'{name}{{model="m",{label}="'
        return {key[len(head) : -2]: value for key, value in numbers.items() if key.startswith(head)}

    assert of("pool_blocks", "state") == {"free": 1, "in_use": 2, "quarantined": 3}
    assert of("seconds_total", "phase") == {"queue": 0.5, "encode": 1.5}
    assert of("finished_total", "result") == dict.fromkeys((result.value for result in TransferResult), 0) | {
        "success": 10,
        "lost": 11,
    }
    assert of("ignored_messages_total", "why") == {"late": 12, "duplicate": 0, "epoch": 0, "unknown": 0}


def test_the_buckets_of_a_histogram_add_up():
    numbers = exposed(m=STATS)

    buckets = [numbers[f'grant_blocks_bucket{{le="{bound}",model="m"}}'] for bound in ("1", "2", "4", "64", "+Inf")]
    assert buckets == [2, 2, 3, 3, 4]


def test_every_model_with_an_encoder_is_told_apart_and_none_makes_no_lines():
    numbers = exposed(a=STATS, b=replace(STATS, is_degraded=False))

    assert (numbers['degraded{model="a"}'], numbers['degraded{model="b"}']) == (1, 0)
    assert exposed() == {}
