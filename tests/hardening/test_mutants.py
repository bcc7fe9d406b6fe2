"""A model file that somebody has tampered with is refused, or serves; the good model beside it always answers.

`python -m tests.hardening.mutants` does the same with many more.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hardening import mutants
from tests.serve.server import Servers

# The tampering, and what becomes of the model.
OUTCOMES = {
    "llama.block_count=600": "could not be loaded: libllama dies with SIGABRT",
    "llama.attention.head_count=7": "could not be loaded: libllama cannot load",
    "llama.rope.dimension_count=7": "could not be loaded: libllama cannot load",
    "tokenizer.ggml.tokens-has-261": "could not be loaded: libllama cannot load",
    "output.weight-offset-1048576": "could not be loaded: libllama cannot load",
    "token_embd.weight-made-24": "could not be loaded: libllama dies with SIG",
    "blk.0.attn_q.weight-shaped-(32, 1)": "could not be loaded: libllama cannot load",
    "cut-in-weights": "could not be loaded: libllama cannot load",
    "output_norm.weight-nan": "answers with 500: /v1/completions",
    "tokenizer.ggml.eos_token_id=2147483647": "serves",
}


@pytest.mark.slow
def test_a_good_model_answers_beside_any_tampered_one(start: Servers, tmp_path: Path) -> None:
    served = mutants.chosen(mutants.all_mutants(tmp_path), OUTCOMES)

    outcomes = {mutant.name: outcome for mutant, outcome in mutants.serve(start, served, tmp_path)}

    assert [name for name, words in OUTCOMES.items() if words not in outcomes[name]] == [], outcomes
