"""A predictor: corosrv serve --predictor deploy/predictor/predict.py:Predictor"""

from corosrv.worker import BasePredictor, ConcatenateIterator, Input, streaming


class Predictor(BasePredictor):
    def setup(self) -> None:
        self.greeting = "Hello"  # weights are loaded here, once

    @streaming
    def run(
        self,
        name: str = Input(description="whom to greet", max_length=100),
        times: int = Input(default=1, ge=1, le=1000),
    ) -> ConcatenateIterator[str]:
        for i in range(times):
            print(f"greeting {i + 1} of {times}")  # into the prediction's logs
            yield f"{self.greeting}, {name}! "
