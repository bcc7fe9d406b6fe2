"""Which projectors and models belong together."""

import pytest

from corosrv.base.errors import LoadError
from corosrv.images.encoder.opening import MROPE_KINDS, Pair, check_pair
from corosrv.images.transfer.messages import MROPE, NON_CAUSAL


def pair(**changes: object) -> Pair:
    values = {"kind": "mlp", "is_mrope": False, "has_attention": True, "is_non_causal": False}
    return Pair(mmproj="p.gguf", model="m.gguf", **values | changes)


@pytest.mark.parametrize(
    ("fits", "supports"),
    [
        (pair(), ()),
        (pair(has_attention=False), ()),
        (pair(is_mrope=True), (MROPE,)),
        (pair(kind="qwen2vl_merger", is_mrope=True), (MROPE,)),
        (pair(is_non_causal=True), (NON_CAUSAL,)),
        (pair(is_mrope=True, is_non_causal=True), (MROPE, NON_CAUSAL)),
    ],
)
def test_a_projector_whose_rows_the_model_and_the_loop_can_read_fits(fits: Pair, supports: tuple[str, ...]):
    check_pair(fits, supports)


@pytest.mark.parametrize("kind", sorted(MROPE_KINDS))
def test_a_projector_for_mrope_needs_a_model_that_has_it(kind: str):
    with pytest.raises(LoadError, match=rf"p.gguf \({kind}\) is for models with M-RoPE, and the model m.gguf has none"):
        check_pair(pair(kind=kind), (MROPE, NON_CAUSAL))


def test_rows_that_see_each_other_need_a_model_with_attention():
    with pytest.raises(LoadError, match=r"p.gguf \(mlp\) needs attention .*, and the model m.gguf is recurrent"):
        check_pair(pair(is_non_causal=True, has_attention=False), (MROPE, NON_CAUSAL))


@pytest.mark.parametrize(
    ("unfit", "supports", "words"),
    [
        (pair(is_mrope=True), (NON_CAUSAL,), "needs M-RoPE positions, which"),
        (pair(is_non_causal=True), (MROPE,), "needs attention that is not causal, which"),
        (pair(is_mrope=True, is_non_causal=True), (), "needs M-RoPE positions and attention that is not causal, which"),
        (pair(is_mrope=True, is_non_causal=True), (MROPE,), "needs attention that is not causal, which"),
    ],
)
def test_what_the_decode_loop_does_not_support_is_named(unfit: Pair, supports: tuple[str, ...], words: str):
    with pytest.raises(LoadError, match=f"p.gguf {words} this version does not support"):
        check_pair(unfit, supports)
