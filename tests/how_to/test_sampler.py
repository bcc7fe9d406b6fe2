"""The recipe of samplers: the native core is compiled in the copy, and a request uses the new stage."""

from pathlib import Path

import pytest

from tests.how_to.recipes import Recipe
from tests.support.engines import packaged_model

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(1400)]

HEADER = """// Keeps the first few candidates.
#pragma once

#include "sampling/stage.h"

namespace corosrv {

class Head final : public Stage {
 public:
  explicit Head(size_t n) : n_(n) {}
  void apply(Candidates& candidates, Random& random) override;

 private:
  const size_t n_;
};

}  // namespace corosrv
"""
SOURCE = """#include "sampling/head.h"

#include <algorithm>

namespace corosrv {

void Head::apply(Candidates& candidates, Random&) { candidates.resize(std::min(n_, candidates.size())); }

}  // namespace corosrv
"""


def after(line: str, more: str) -> tuple[str, str]:
    return line, line + more


def change_the_core(recipe: Recipe) -> None:
    recipe.change(
        "native/include/corosrv_types.h",
        after("  COROSRV_SAMPLER_TEMPERATURE = 8,\n", "  COROSRV_SAMPLER_HEAD = 9,\n"),
        ("COROSRV_SAMPLER_ADAPTIVE_P = 9 ", "COROSRV_SAMPLER_ADAPTIVE_P = 10 "),
        after("  float xtc_threshold;\n", "  int32_t head; /* candidates that are kept; 0 keeps all */\n"),
    )
    recipe.change(
        "native/src/model/types.h",
        after("  kTemperature,\n", "  kHead,\n"),
        after("  float xtc_threshold = 0.1f;\n", "  int32_t head = 0;\n"),
        ("SamplerKind::kTemperature,\n", "SamplerKind::kTemperature, SamplerKind::kHead,\n"),
    )
    recipe.change(
        "native/src/api/to_core.cpp",
        after(
            "      return SamplerKind::kTemperature;\n",
            "    case COROSRV_SAMPLER_HEAD:\n      return SamplerKind::kHead;\n",
        ),
        after("  sampling.xtc_threshold = from.xtc_threshold;\n", "  sampling.head = from.head;\n"),
    )
    recipe.change(
        "native/src/api/check.cpp",
        after(
            '  if (!std::isfinite(sampling.top_n_sigma)) return invalid("top_n_sigma must be finite");\n',
            '  if (sampling.head < 0) return invalid("head must be 0 or more");\n',
        ),
    )
    recipe.add("native/src/sampling/head.h", HEADER)
    recipe.add("native/src/sampling/head.cpp", SOURCE)
    recipe.change(
        "native/src/sampling/sampling_order.cpp",
        after('#include "sampling/dry.h"\n', '#include "sampling/head.h"\n'),
        (
            "    case SamplerKind::kAdaptiveP:\n",
            "    case SamplerKind::kHead:\n"
            "      return sampling.head > 0 ? std::make_unique<Head>(static_cast<size_t>(sampling.head)) : nullptr;\n"
            "    case SamplerKind::kAdaptiveP:\n",
        ),
    )


def change_the_server(recipe: Recipe) -> None:
    recipe.change(
        "corosrv/contracts/jobs/job.py",
        ('"temperature", "adaptive_p"\n', '"temperature", "head", "adaptive_p"\n'),
        ('zip("edskypmxta",', 'zip("edskypmxtha",'),
        after("    xtc_threshold: float = 0.1\n", "    head: int = 0  # 0 keeps all\n"),
    )
    recipe.change(
        "corosrv/models/engine/binding/tasks.py",
        (
            "            lib.COROSRV_SAMPLER_ADAPTIVE_P,",
            "            lib.COROSRV_SAMPLER_HEAD, lib.COROSRV_SAMPLER_ADAPTIVE_P,",
        ),
    )
    recipe.change(
        "corosrv/dialects/generation/fields.py",
        after(
            "    xtc_threshold: Fraction | None = None\n",
            "    head: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None\n",
        ),
        ('"adaptive_decay", "min_keep", "ignore_eos",\n', '"adaptive_decay", "min_keep", "ignore_eos", "head",\n'),
    )
    recipe.change("corosrv/dialects/generation/native.py", ('"xtc_threshold", ', '"xtc_threshold", "head", '))


def test_a_sampler_is_compiled_named_and_used(tmp_path: Path):
    model = packaged_model()
    recipe = Recipe("Add a sampler", tmp_path, "native")
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / name).write_bytes((Path(__file__).parents[2] / name).read_bytes())
    change_the_core(recipe)
    change_the_server(recipe)
    next((tmp_path / "corosrv").glob("_native*.so")).unlink()
    # Not optimised, and so compiled in a fraction of the time.
    recipe.run("setup.py", "-q", "build_ext", "--inplace", timeout=1200, COROSRV_CFLAGS="-O0")

    asked = {"prompt": "One, two, three,", "n_predict": 8, "top_k": 0, "top_p": 1, "min_p": 0}
    with recipe.server("--model", model, "--ctx", "256", "--slots", "2", "--threads", "2") as client:
        _, greedy, _ = client.post("/completion", **asked, temperature=0)
        heads = [
            client.post("/completion", **asked, temperature=100, head=1, seed=seed, samplers=samplers)[1]
            for seed, samplers in ((1, ["head", "temperature"]), (2, "th"))
        ]
        _, wild, _ = client.post("/completion", **asked, temperature=100, seed=1)
        refused = client.post("/completion", **asked, head=-1)

    assert [head["content"] for head in heads] == 2 * [greedy["content"]]
    assert heads[0]["generation_settings"]["head"] == 1
    assert wild["content"] != greedy["content"]
    assert (refused[0], refused[1]["error"]["param"]) == (400, "head")
