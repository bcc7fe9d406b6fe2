"""Ray as the controller and the commands use it: named actors, resources, a small store. Imports ray late."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from corosrv.fleet.ray.cluster_file import Kind, ProcessGroup, ProcessSection
from corosrv.fleet.ray.members import ClusterMember, ClusterSecrets

NAMESPACE = "corosrv"
CONTROLLER = "controller"
_PREFIX = "member"
_STORE = b"corosrv"
CALL_TIME = 30.0  # seconds for an answer of the controller
_MEMBER_CALLS = 4  # at once, so that a status is told while a drain is asked for

Room = tuple[Mapping[str, float], Mapping[str, float]]


def options_of(section: ProcessSection) -> dict[str, Any]:
    """Returns Ray's options of an actor for what a process takes of its node."""
    options: dict[str, Any] = {"num_cpus": section.cpus, "num_gpus": section.gpus, "resources": dict(section.resources)}
    if section.memory_mb:
        options["memory"] = int(section.memory_mb * 1e6)
    if section.labels:
        options["label_selector"] = dict(section.labels)
    return options


def missing_words(section: ProcessSection, total: Mapping[str, float], free: Mapping[str, float]) -> str:
    """Says why no node has room: what the cluster lacks altogether, otherwise what is not free now."""
    wants = {"CPU": section.cpus, "GPU": section.gpus, "memory": section.memory_mb * 1e6, **section.resources}
    wants = {name: amount for name, amount in wants.items() if amount}
    lacking = [
        _words(name, amount, "the cluster has", total) for name, amount in wants.items() if amount > total.get(name, 0)
    ]
    busy = [_words(name, amount, "free are", free) for name, amount in wants.items() if amount > free.get(name, 0)]
    if lacking or busy:
        return "; ".join(lacking or busy)
    where = ", ".join(f"{name}={value}" for name, value in section.labels.items())
    return f"waits for a node{f' with {where}' if where else ''} that has room"


def _words(name: str, amount: float, has: str, amounts: Mapping[str, float]) -> str:
    unit, scale = ("MB of memory", 1e6) if name == "memory" else (f"{name}", 1.0)
    return f"wants {amount / scale:g} {unit}, {has} {amounts.get(name, 0) / scale:g}"


class ActorSpace:
    """The actors of one Ray cluster that are corosrv's. For a process that is connected to Ray."""

    def members(self) -> dict[str, tuple[Kind, str, str, Any]]:
        """Returns kind, group, version and handle of each member, by the actor's name. Waits for Ray."""
        import ray

        found = {}
        for entry in ray.util.list_named_actors(all_namespaces=True):
            if entry["namespace"] != NAMESPACE or not entry["name"].startswith(f"{_PREFIX}:"):
                continue
            _, kind, group, version, _ = entry["name"].split(":")
            try:
                handle = ray.get_actor(entry["name"], NAMESPACE)
            except ValueError:  # it has gone meanwhile
                continue
            found[entry["name"]] = (Kind(kind), group, version, handle)
        return found

    def answers(self, questions: Sequence[Any], seconds: float) -> list[Any]:
        """Returns each answer, None where there is none yet, and the error of an actor that is gone. Waits."""
        import ray

        if not questions:
            return []
        ready, _ = ray.wait(list(questions), num_returns=len(questions), timeout=seconds)
        answered = set(ready)
        return [_answer(question) if question in answered else None for question in questions]

    def start(self, group: ProcessGroup, listen: str, shared: ClusterSecrets, *, is_joinable: bool) -> None:
        """Creates an actor, which Ray places when a node has room. Waits for nothing."""
        import ray

        name = f"{_PREFIX}:{group.key}:{group.version}:{secrets.token_hex(3)}"
        own = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "max_restarts": -1}
        spread = {"scheduling_strategy": "SPREAD"} if group.kind is Kind.FRONT and not group.section.labels else {}
        options = own | {"max_concurrency": _MEMBER_CALLS} | options_of(group.section) | spread
        ray.remote(PlacedMember).options(**options).remote(group, listen, shared, is_joinable)

    def remove(self, handle: Any) -> None:
        """Ends an actor for good."""
        import ray

        ray.kill(handle, no_restart=True)

    def room(self) -> Room:
        """Returns the resources of the cluster, and those that are free."""
        import ray

        return ray.cluster_resources(), ray.available_resources()

    def save(self, key: bytes, value: bytes) -> None:
        """Keeps a value for as long as the cluster's head lives."""
        from ray.experimental import internal_kv

        internal_kv._internal_kv_put(key, value, overwrite=True, namespace=_STORE)

    def load(self, key: bytes) -> bytes | None:
        """Returns a value that was kept."""
        from ray.experimental import internal_kv

        value: bytes | None = internal_kv._internal_kv_get(key, namespace=_STORE)
        return value

    def forget(self, key: bytes) -> None:
        """Removes a value."""
        from ray.experimental import internal_kv

        internal_kv._internal_kv_del(key, namespace=_STORE)


def _answer(question: Any) -> Any:
    import ray

    try:
        return ray.get(question)
    except ray.exceptions.RayError as error:
        return error


class PlacedMember(ClusterMember):
    """A member in Ray's process: it listens on the address that Ray knows its node by, where the file wants that."""

    def __init__(self, group: ProcessGroup, listen: str, shared: ClusterSecrets, is_joinable: bool) -> None:
        import ray

        host = ray.util.get_node_ip_address() if listen == "node" else "127.0.0.1"
        super().__init__(group, host, shared, is_joinable)
