"""How much memory a model is taken for."""

from types import SimpleNamespace

import pytest

from corosrv.contracts.settings import ModelSettings
from corosrv.models import plan
from corosrv.models.engine.binding import ModelInfo
from corosrv.models.fitting import gguf
from corosrv.models.fitting.room import CacheTypes
from tests.support.engines import packaged_model
from tests.support.gguf_heads import PAIRS, head


def test_weights_their_copies_and_the_slots_are_summed(write):
    path = write(head(*PAIRS))
    facts = gguf.read(path)
    with_copies = ModelSettings(model=path, slots=2, ctx=4096)
    without = ModelSettings(model=path, slots=2, ctx=100, kernels="ggml")

    assert plan.estimate(with_copies, facts) == 2 * facts.size + 2 * 2048 * 192
    assert plan.estimate(without, facts) == facts.size + 2 * 256 * 192


def test_what_slots_share_counts_once_for_all_of_them(write):
    facts = gguf.read(write(head(*PAIRS)))
    sharing = ModelSettings(model="m.gguf", slots=3, ctx=100, kernels="ggml", kv_unified=True)
    info = SimpleNamespace(size=1000, packed_bytes=0, context=300, shared_cells=300)

    assert plan.estimate(sharing, facts) == facts.size + 512 * 192
    assert plan.measured(sharing, facts, info, 3) == 1000 + 512 * 192


def test_the_projector_counts_as_well(write, tmp_path):
    path, projector = write(head(*PAIRS)), tmp_path / "mmproj.gguf"
    projector.write_bytes(bytes(1000))
    facts = gguf.read(path)

    with_projector = plan.estimate(ModelSettings(model=path, mmproj=str(projector)), facts)

    assert with_projector == plan.estimate(ModelSettings(model=path), facts) + 1000
    assert plan.estimate(ModelSettings(model=path, mmproj="/no/such.gguf"), facts) == with_projector - 1000


def test_a_file_that_says_nothing_is_taken_for_small():
    assert plan.estimate(ModelSettings(model="/no/such.gguf"), None) == 0


@pytest.mark.model
def test_the_estimate_of_a_real_model_is_near_what_it_takes(smollm2):
    chosen = ModelSettings(model=packaged_model(), slots=16, ctx=512)
    facts = gguf.read(chosen.model)
    info: ModelInfo = smollm2.info

    guessed, taken = plan.estimate(chosen, facts), plan.measured(chosen, facts, info, 16)

    # 30 layers of 3 heads, 64 wide.
    assert facts.cache.token_bytes(CacheTypes()) == 30 * 3 * 128 * 2
    assert (facts.n_ctx_train, facts.n_embd) == (info.context_train, info.n_embd)
    assert taken <= guessed < 1.5 * taken


def test_what_is_left_open_fits_into_what_the_model_may_take(write):
    path = write(head(*PAIRS) + bytes(1000))
    facts = gguf.read(path)
    whole = plan.estimate(ModelSettings(model=path), facts)

    fitted = plan.estimate(ModelSettings(model=path, memory_bytes=(192 << 20) + 8_000_000), facts)

    assert whole == 2 * facts.size + 32 * 2048 * 192
    assert 2 * facts.size + 4 * 2048 * 192 <= fitted < whole / 2


def test_one_model_may_take_the_whole_limit_and_no_limit_is_none():
    assert plan.share(1000, 100, ()) == 1000
    assert plan.share(0, 100, (5,)) == 0


def test_several_models_share_what_their_files_and_copies_leave():
    shares = [plan.share(1000, 100, (50, 150)), plan.share(1000, 50, (100, 150)), plan.share(1000, 150, (100, 50))]

    assert shares == [333, 233, 433]
    assert sum(shares) <= 1000


def test_models_that_do_not_fit_side_by_side_may_each_take_all():
    assert plan.share(1000, 300, (400,)) == 1000
