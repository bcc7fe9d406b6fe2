"""Predictors that do nothing, to measure what everything else costs."""

from corosrv.worker import BasePredictor, concurrent


class Predictor(BasePredictor):
    @concurrent(max=8)
    async def run(self) -> str:
        return ""


class SyncPredictor(BasePredictor):
    def run(self) -> str:
        return ""
