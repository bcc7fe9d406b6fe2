"""What a cluster file says, and how a wrong one is refused."""

import pytest

from corosrv.base.errors import SettingsError
from corosrv.fleet.ray.cluster_file import Kind, convert, groups_of, read_cluster_file

ENGINE = {"name": "chat", "model": "synthetic:"}
POOL = {"name": "work", "app": "basic.py:app"}


def test_a_file_makes_a_group_of_each_kind(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(
        '[fronts]\ncount = 1\nport = 0\n[[engines]]\nname = "chat"\nmodel = "a.gguf"\nreplicas = [1, 4]\ngpus = 1\n'
        '[[pools]]\nname = "work"\napp = "basic.py:app"\nreplicas = 2\n'
    )

    groups = groups_of(read_cluster_file(path))

    assert [(one.kind, one.name, one.least, one.most) for one in groups] == [
        (Kind.FRONT, "fronts", 1, 1),
        (Kind.ENGINE, "chat", 1, 4),
        (Kind.POOL, "work", 2, 2),
    ]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "engines must have an entry"),
        ({"engine": []}, "unknown field `engine`"),
        ({"engines": [ENGINE | {"replica": 2}]}, r"unknown field `replica` - at `\$.engines\[0\]`"),
        ({"engines": [{"name": "chat"}]}, "missing required field `model`"),
        ({"engines": [ENGINE | {"gpus": "one"}]}, r"Expected `float`, got `str` - at `\$.engines\[0\].gpus`"),
        ({"engines": [ENGINE | {"gpus": -1}]}, r"engines\[0\].gpus must be at least 0"),
        ({"engines": [ENGINE | {"model": ""}]}, r"engines\[0\].model must name a model"),
        ({"engines": [ENGINE | {"replicas": 0}]}, r"engines\[0\].replicas must be at least 1"),
        ({"engines": [ENGINE | {"replicas": [3, 2]}]}, r"must be \[least, most\]"),
        ({"engines": [ENGINE | {"slo": 0}]}, r"engines\[0\].slo must be more than 0"),
        ({"engines": [ENGINE | {"concurrency": -1}]}, r"engines\[0\].concurrency"),
        ({"engines": [ENGINE | {"name": "a:b"}]}, r"engines\[0\].name must be 1 to 40 letters"),
        ({"engines": [ENGINE, ENGINE]}, r"engines\[1\].name 'chat' is that of another one"),
        ({"engines": [ENGINE | {"settings": {"slotz": 2}}]}, r"engines\[0\].settings.slotz is no setting"),
        ({"engines": [ENGINE | {"settings": {"mgmt_port": 2}}]}, "settings.mgmt_port is given by corosrv ray itself"),
        ({"engines": [ENGINE], "fronts": {"count": 0}}, "fronts.count must be at least 1"),
        ({"engines": [ENGINE], "fronts": {"port": 70000}}, "fronts.port must be from 0 to 65535"),
        ({"engines": [ENGINE], "listen": "all"}, "listen must be 'loopback' or 'node'"),
        ({"engines": [ENGINE], "listen": "node"}, "api_keys_file or api_keys"),
        ({"pools": [POOL | {"replicas": [1, 2]}]}, r"pools\[0\].replicas must be a number"),
        ({"pools": [POOL | {"settings": {"slots": 1}}]}, r"pools\[0\].settings must be empty"),
        ({"pools": [POOL], "fronts": {"count": 2}}, "must be 1 with pools"),
    ],
)
def test_a_wrong_file_is_refused_by_its_member(values, words):
    with pytest.raises(SettingsError, match=words):
        convert(values, "cluster.toml")


def test_a_file_that_is_no_toml_is_refused_by_its_path(tmp_path):
    (tmp_path / "cluster.toml").write_text("engines = [")

    with pytest.raises(SettingsError, match=r"cluster.toml cannot be read"):
        read_cluster_file(tmp_path / "cluster.toml")


@pytest.mark.parametrize(
    ("change", "is_new"),
    [
        ({"replicas": 3}, False),
        ({"slo": 5.0}, False),
        ({"model": "b.gguf"}, True),
        ({"gpus": 1}, True),
        ({"settings": {"slots": 2}}, True),
    ],
)
def test_a_version_changes_with_what_a_running_process_would_not_follow(change, is_new):
    versions = [groups_of(convert({"engines": [ENGINE | extra]}, ""))[1].version for extra in ({}, change)]

    assert (versions[0] != versions[1]) == is_new
