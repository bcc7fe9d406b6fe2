"""Asks a server for many answers: rollouts of groups, blocking or with asyncio.

Depends on the standard library alone, and patches nothing. `bench`, the load generator of `corosrv bench`, is a program
beside it. The server imports neither.
"""

from corosrv.client.groups import AnswerToken, GroupAnswer, LostGroup, RolloutGroup, RolloutReport
from corosrv.client.rollout import Rollout, rollout

__all__ = ["AnswerToken", "GroupAnswer", "LostGroup", "Rollout", "RolloutGroup", "RolloutReport", "rollout"]
