"""The commands where there is no cluster, and what is told of a cluster that has no room."""

import contextlib
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from corosrv.cli import main
from corosrv.fleet.ray import commands
from corosrv.fleet.ray.cluster_file import ProcessSection
from corosrv.fleet.ray.placement import missing_words, options_of


def test_neither_a_server_nor_the_command_line_imports_ray():
    code = "import sys, corosrv.app, corosrv.gunicorn_app, corosrv.cli; print('ray' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)

    assert done.stdout.split() == ["False"]


def test_a_wrong_file_is_refused_before_a_cluster_is_looked_for(tmp_path):
    (tmp_path / "cluster.toml").write_text("[fronts]\nports = 1\n")

    done = CliRunner().invoke(main, ["ray", "up", str(tmp_path / "cluster.toml")])

    assert done.exit_code == 1
    assert "unknown field `ports` - at `$.fronts`" in done.output


@pytest.mark.parametrize("bounds", ["0", "3..2", "two", "1..", "..2", "-1"])
def test_bounds_that_are_none_are_refused(bounds):
    done = CliRunner().invoke(main, ["ray", "scale", "chat", "--", bounds])

    assert done.exit_code == 2
    assert "LEAST..MOST" in done.output


def test_what_ray_prints_of_a_node_that_dies_is_not_in_the_json_of_the_status(monkeypatch):
    @contextlib.contextmanager
    def connected(address):
        print("(raylet) Raylet is terminated.")
        yield
        print("(raylet) The node has been marked dead.")

    monkeypatch.setattr(commands, "_connected", connected)
    monkeypatch.setattr(commands, "ControllerLink", lambda ray: SimpleNamespace(call=lambda method: {"members": []}))

    done = CliRunner().invoke(main, ["ray", "status", "--json"])

    assert json.loads(done.stdout) == {"members": []}
    assert "marked dead" in done.stderr


@pytest.mark.parametrize(
    ("wants", "words"),
    [
        ({"gpus": 4}, "wants 4 GPU, the cluster has 0"),
        ({"gpus": 4, "cpus": 99}, "wants 99 CPU, the cluster has 8; wants 4 GPU, the cluster has 0"),
        ({"cpus": 3}, "wants 3 CPU, free are 2"),
        ({"cpus": 1, "memory_mb": 3000}, "wants 3000 MB of memory, the cluster has 2000"),
        ({"cpus": 1, "resources": {"tpu": 1}}, "wants 1 tpu, the cluster has 0"),
        ({"cpus": 1, "labels": {"zone": "a"}}, "waits for a node with zone=a that has room"),
    ],
)
def test_what_a_process_waits_for_is_named(wants, words):
    total, free = {"CPU": 8.0, "memory": 2e9}, {"CPU": 2.0, "memory": 2e9}

    assert missing_words(ProcessSection(**wants), total, free) == words


def test_what_a_process_takes_of_its_node_becomes_options_of_its_actor():
    section = ProcessSection(cpus=2, gpus=0.5, memory_mb=100, resources={"tpu": 1}, labels={"zone": "a"})

    assert options_of(section) == {
        "num_cpus": 2,
        "num_gpus": 0.5,
        "memory": 100_000_000,
        "resources": {"tpu": 1},
        "label_selector": {"zone": "a"},
    }
