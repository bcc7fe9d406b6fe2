"""Ids of upstreams."""

from corosrv.fleet.upstreams.policies import rank_name, upstream_id

URL = "http://10.0.0.1:8080"


def test_a_url_has_the_same_id_in_every_process():
    assert upstream_id(URL, ()) == "upstream-3b5651497919"
    assert upstream_id("http://10.0.0.2:8080", ()) != upstream_id(URL, ())


def test_ids_are_unique_while_older_entries_of_a_url_drain():
    taken: list[str] = []
    for _ in range(4):
        taken.append(upstream_id(URL, taken))

    assert len(set(taken)) == 4


def test_every_entry_of_a_url_is_ranked_alike():
    first = upstream_id(URL, ())
    second = upstream_id(URL, [first])

    assert rank_name(first) == rank_name(second) == first
