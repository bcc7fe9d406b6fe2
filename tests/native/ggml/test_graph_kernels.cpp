// The kernels inside ggml's own scheduler, next to what ggml computes by itself.
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "graphs.h"
#include "kernels/attention.h"
#include "kernels/graph_kernels.h"
#include "kernels/kernel_test.h"
#include "kernels/packed_matrix.h"

namespace corosrv {
namespace {

const KernelChoice kDeterministic{best_products(), best_attention(), best_elements(), kNoLimit, true};
const KernelChoice kDeterministicAlone{nullptr, nullptr, nullptr, kNoLimit, true};

// How far products with weights of 16 bits may be from ggml's, which rounds activations to the same 16 bits.
float nearness(ggml_type type) {
  if (type == GGML_TYPE_F16) return 3e-2f;
  return type == GGML_TYPE_BF16 ? 0.2f : 2e-5f;
}

constexpr ggml_type kWideTypes[] = {GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K,
                                    GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_XS};

// What a layer asks for: three products of the same activations, one of others, and one of the first again.
Graph::Build layer(const Weights& weights) {
  return [&weights](ggml_context* context, ggml_tensor* input) -> Tensors {
    ggml_tensor* first = ggml_scale(context, input, 0.5f);
    ggml_tensor* second = ggml_scale(context, first, -3.0f);
    return {ggml_mul_mat(context, weights[0], first), ggml_mul_mat(context, weights[1], first),
            ggml_mul_mat(context, weights[2], first), ggml_mul_mat(context, weights[0], second),
            ggml_mul_mat(context, weights[1], first)};
  };
}

// Whether the first rows give the same bits whatever comes behind them.
void check_rows_alone_and_together(Machine& machine, const Graph::Build& build) {
  const Values input = input_of(80, 1);
  const std::vector<Values> together = Graph(machine, 80, build).compute(input);
  for (const int64_t n_rows : {1, 2, 3, 7, 8, 9, 17, 39, 65}) {
    const std::vector<Values> few = Graph(machine, n_rows, build).compute(input);
    for (size_t i = 0; i < few.size(); ++i) {
      CHECK(std::memcmp(few[i].data(), together[i].data(), few[i].size() * sizeof(float)) == 0);
    }
  }
}

KERNEL_TEST(best_products() != nullptr,
            "products are ggml's but for the order of their sums, also in a graph that is computed again") {
  for (const ggml_type type : {GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q8_0,
                               GGML_TYPE_IQ4_NL, GGML_TYPE_MXFP4, GGML_TYPE_F16, GGML_TYPE_BF16}) {
    GraphKernels kernels(kFaster);
    Machine machine(&kernels);
    const Weights weights(machine, type, {48, 16, 160});

    // Down as well as up: the second graph has more rows than the first, the last fewer.
    for (const int64_t n_rows : {1, 33, 2, 70, 8}) {
      check_against_ggml(machine, n_rows, layer(weights), 5, 3, nearness(type));
    }
  }
}

KERNEL_TEST(best_products() != nullptr,
            "products with formats of 256 numbers are near ggml's, and no row needs another") {
  constexpr int64_t kWide = 768;
  for (const ggml_type type : kWideTypes) {
    GraphKernels kernels(kFaster);
    Machine machine(&kernels);
    const Weights weights(machine, type, {48, 16}, GGML_BACKEND_BUFFER_USAGE_WEIGHTS, kWide);
    const Graph::Build build = [&](ggml_context* context, ggml_tensor* input) -> Tensors {
      ggml_tensor* wide = ggml_repeat_4d(context, input, kWide, input->ne[1], 1, 1);
      return {ggml_mul_mat(context, weights[0], wide), ggml_mul_mat(context, weights[1], wide)};
    };

    // ggml has one scale for 256 activations. Outputs are of the size of thirty.
    for (const int64_t n_rows : {1, 33}) check_against_ggml(machine, n_rows, build, 2, 2, 1.0f);
    check_rows_alone_and_together(machine, build);
  }
}

KERNEL_TEST(best_products() != nullptr,
            "activations of an earlier graph are not taken for those of a later one at the same address") {
  for (const ggml_type type : {GGML_TYPE_Q4_1, GGML_TYPE_BF16}) {
    GraphKernels kernels(kFaster);
    Machine machine(&kernels);
    const Weights weights(machine, type, {16});
    const Graph::Build of_a_node = [&](ggml_context* context, ggml_tensor* input) -> Tensors {
      return {ggml_mul_mat(context, weights[0], ggml_scale(context, input, 2.0f))};
    };
    const Graph::Build of_the_input = [&](ggml_context* context, ggml_tensor* input) -> Tensors {
      return {ggml_mul_mat(context, weights[0], input)};
    };

    for (const Graph::Build& build : {of_a_node, of_the_input}) {
      for (const int64_t n_rows : {4, 3, 2}) check_against_ggml(machine, n_rows, build, 1, 1, nearness(type));
    }
  }
}

TEST("a row of a graph gives the same bits alone and among others") {
  for (const ggml_type type : {GGML_TYPE_Q4_1, GGML_TYPE_F16, GGML_TYPE_BF16}) {
    GraphKernels kernels(kFaster);
    Machine machine(&kernels);
    const Weights weights(machine, type, {48, 16, 160});

    check_rows_alone_and_together(machine, layer(weights));
  }
}

TEST("what is no plain product with a weight stays ggml's") {
  GraphKernels kernels(kFaster);
  Machine machine(&kernels);
  const Weights others(machine, GGML_TYPE_Q4_1, {16}, GGML_BACKEND_BUFFER_USAGE_ANY);
  const Weights unknown(machine, GGML_TYPE_F32, {16});
  const Weights odd(machine, GGML_TYPE_Q4_1, {24});
  const Weights good(machine, GGML_TYPE_Q4_1, {32});

  check_against_ggml(
      machine, 4,
      [&](ggml_context* context, ggml_tensor* input) -> Tensors {
        ggml_tensor* half = ggml_view_2d(context, good[0], kColumns, 16, good[0]->nb[1], 0);
        return {ggml_mul_mat(context, others[0], input), ggml_mul_mat(context, unknown[0], input),
                ggml_mul_mat(context, odd[0], input), ggml_mul_mat(context, half, input)};
      },
      0);
  CHECK_EQ(kernels.bytes(), 0u);
}

// Products with rows that lie apart, and with the rows of two sequences.
Graph::Build planes(const Weights& weights) {
  return [&weights](ggml_context* context, ggml_tensor* input) -> Tensors {
    const int64_t half = input->ne[1] / 2;
    ggml_tensor* strided = ggml_view_2d(context, input, kColumns, half, 2 * input->nb[1], 0);
    ggml_tensor* sequences =
        ggml_view_3d(context, input, kColumns, half, 2, input->nb[1], static_cast<size_t>(half) * input->nb[1], 0);
    return {ggml_mul_mat(context, weights[0], strided), ggml_mul_mat(context, weights[0], sequences)};
  };
}

KERNEL_TEST(best_products() != nullptr, "the packed product is taken however the rows of a batch lie") {
  GraphKernels kernels(kFaster);
  Machine machine(&kernels);
  const Weights weights(machine, GGML_TYPE_Q4_1, {32});

  for (const int64_t n_rows : {2, 10, 34}) check_against_ggml(machine, n_rows, planes(weights), 2);
}

constexpr ggml_type kTypes[] = {GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_Q4_0,  GGML_TYPE_Q4_1,
                                GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q8_0, GGML_TYPE_IQ4_NL};

TEST("a deterministic product of any format gives a row the same bits alone and among others") {
  for (const KernelChoice& choice : {kDeterministic, kDeterministicAlone}) {
    for (const ggml_type type : kTypes) {
      GraphKernels kernels(choice);
      Machine machine(&kernels);
      const Weights weights(machine, type, {48, 16, 24});

      check_rows_alone_and_together(machine, layer(weights));
      const float tolerance = std::max(1e-4f, nearness(type));
      check_against_ggml(machine, 40, layer(weights), 5, 1, tolerance);
      check_against_ggml(machine, 40, planes(weights), 2, 1, tolerance);
      CHECK_EQ(kernels.violation(), "");
    }
  }
}

constexpr int64_t kExperts = 6;

// Two experts for each row, chosen by its first numbers.
Graph::Build experts(const Weights& weights) {
  return [&weights](ggml_context* context, ggml_tensor* input) -> Tensors {
    const int64_t n_rows = input->ne[1], n_columns = weights[0]->ne[0];
    ggml_tensor* scores = ggml_cont(context, ggml_view_2d(context, input, kExperts, n_rows, input->nb[1], 0));
    ggml_tensor* order = ggml_argsort(context, scores, GGML_SORT_ORDER_DESC);
    ggml_tensor* best = ggml_view_2d(context, order, 2, n_rows, order->nb[1], 0);
    ggml_tensor* rows = ggml_repeat_4d(context, input, n_columns, n_rows, 1, 1);
    rows = ggml_reshape_3d(context, rows, n_columns, 1, n_rows);
    // The last products have an input for each expert.
    ggml_tensor* inputs = ggml_repeat_4d(context, ggml_scale(context, rows, 0.5f), n_columns, 2, n_rows, 1);
    return {ggml_mul_mat_id(context, weights[0], rows, best), ggml_mul_mat_id(context, weights[1], rows, best),
            ggml_mul_mat_id(context, weights[0], inputs, best), ggml_mul_mat_id(context, weights[1], inputs, best)};
  };
}

KERNEL_TEST(
    best_products() != nullptr,
    "products with experts are ggml's but for the order of their sums, also in a graph that is computed again") {
  for (const ggml_type type : {GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q8_0,
                               GGML_TYPE_IQ4_NL, GGML_TYPE_MXFP4, GGML_TYPE_F16, GGML_TYPE_BF16}) {
    GraphKernels kernels(kFaster);
    Machine machine(&kernels);
    const Weights weights(machine, type, {48, 16}, GGML_BACKEND_BUFFER_USAGE_WEIGHTS, kColumns, kExperts);

    // The last ones have more rows for an expert than are multiplied at a time.
    for (const int64_t n_rows : {1, 33, 2, 70, 8, 500}) {
      check_against_ggml(machine, n_rows, experts(weights), 4, 3, nearness(type));
    }
    check_rows_alone_and_together(machine, experts(weights));
  }
}

KERNEL_TEST(best_products() != nullptr, "products with experts in formats of 256 numbers are near ggml's") {
  for (const ggml_type type : kWideTypes) {
    GraphKernels kernels(kFaster);
    Machine machine(&kernels);
    const Weights weights(machine, type, {48, 16}, GGML_BACKEND_BUFFER_USAGE_WEIGHTS, 768, kExperts);

    for (const int64_t n_rows : {1, 33}) check_against_ggml(machine, n_rows, experts(weights), 4, 2, 1.0f);
    check_rows_alone_and_together(machine, experts(weights));
  }
}

// As a mixture has them when a dense layer beside the experts reads the same activations.
KERNEL_TEST(best_products() != nullptr, "activations in the order of experts are not taken for those in their own") {
  for (const ggml_type type : {GGML_TYPE_Q8_0, GGML_TYPE_BF16}) {
    GraphKernels kernels(kFaster);
    Machine machine(&kernels);
    const Weights weights(machine, type, {48, 16}, GGML_BACKEND_BUFFER_USAGE_WEIGHTS, kColumns, kExperts);
    const Weights dense(machine, type, {48});
    const Graph::Build build = [&](ggml_context* context, ggml_tensor* input) -> Tensors {
      Tensors outputs = experts(weights)(context, input);
      for (const size_t i : {0, 2}) outputs.push_back(ggml_mul_mat(context, dense[0], outputs[i]->src[1]));
      ggml_tensor* others = ggml_cont(context, ggml_view_2d(context, outputs[0]->src[2], 1, input->ne[1],
                                                            outputs[0]->src[2]->nb[1], sizeof(int32_t)));
      outputs.push_back(ggml_mul_mat_id(context, weights[0], outputs[0]->src[1], others));
      outputs.push_back(ggml_mul_mat_id(context, weights[0], outputs[0]->src[1], outputs[0]->src[2]));
      return outputs;
    };

    for (const int64_t n_rows : {1, 33, 70}) check_against_ggml(machine, n_rows, build, 8, 2, nearness(type));
  }
}

KERNEL_TEST(best_products() != nullptr, "matrices of more experts are multiplied in the order of the same ids") {
  GraphKernels kernels(kFaster);
  Machine machine(&kernels);
  const Weights few(machine, GGML_TYPE_Q8_0, {48, 16}, GGML_BACKEND_BUFFER_USAGE_WEIGHTS, kColumns, kExperts),
      many(machine, GGML_TYPE_Q8_0, {48}, GGML_BACKEND_BUFFER_USAGE_WEIGHTS, kColumns, 3 * kExperts);
  const Graph::Build build = [&](ggml_context* context, ggml_tensor* input) -> Tensors {
    ggml_tensor* product = experts(few)(context, input)[0];
    return {product, ggml_mul_mat_id(context, many[0], product->src[1], product->src[2])};
  };

  for (const int64_t n_rows : {1, 33}) check_against_ggml(machine, n_rows, build, 2, 2);
}

TEST("the ids of a row's experts may lie apart") {
  for (const KernelChoice& choice : {kFaster, kDeterministicAlone}) {
    GraphKernels kernels(choice);
    Machine machine(&kernels);
    const Weights weights(machine, GGML_TYPE_Q8_0, {48, 16}, GGML_BACKEND_BUFFER_USAGE_WEIGHTS, kColumns, kExperts);
    const Graph::Build build = [&](ggml_context* context, ggml_tensor* input) -> Tensors {
      ggml_tensor* product = experts(weights)(context, input)[0];
      ggml_tensor* by_rank = ggml_cont(context, ggml_transpose(context, product->src[2]));
      return {ggml_mul_mat_id(context, weights[0], product->src[1], ggml_transpose(context, by_rank))};
    };

    const size_t n_ours = choice.is_deterministic || best_products() != nullptr ? 1 : 0;
    for (const int64_t n_rows : {2, 33}) check_against_ggml(machine, n_rows, build, n_ours, 2, 1e-4f);
  }
}

TEST("experts whose rows are no multiple of a group stay ggml's") {
  GraphKernels kernels(kFaster);
  Machine machine(&kernels);
  const Weights weights(machine, GGML_TYPE_Q4_1, {24, 8}, GGML_BACKEND_BUFFER_USAGE_WEIGHTS, kColumns, kExperts);

  check_against_ggml(machine, 9, experts(weights), 0);
}

TEST("a deterministic product with experts gives a row the same bits alone and among others") {
  for (const KernelChoice& choice : {kDeterministic, kDeterministicAlone}) {
    for (const ggml_type type : kTypes) {
      GraphKernels kernels(choice);
      Machine machine(&kernels);
      const Weights weights(machine, type, {16, 24}, GGML_BACKEND_BUFFER_USAGE_WEIGHTS, kColumns, kExperts);

      check_rows_alone_and_together(machine, experts(weights));
      check_against_ggml(machine, 40, experts(weights), 4, 1, std::max(1e-4f, nearness(type)));
      CHECK_EQ(kernels.violation(), "");
    }
  }
}

// Three heads of 64 numbers, for which ggml's recurrences are written, go through them one token after the other.
Tensors recurrences(ggml_context* context, ggml_tensor* input) {
  constexpr int64_t kHeads = 3, kSize = 64;
  const int64_t n = input->ne[1];
  ggml_tensor* small = ggml_scale(context, ggml_concat(context, input, input, 0), 0.1f);
  ggml_tensor* x = ggml_reshape_3d(context, small, kSize, kHeads, n);
  ggml_tensor* gate = ggml_cont(context, ggml_view_3d(context, x, 1, kHeads, n, x->nb[1], x->nb[2], 0));
  ggml_tensor* first = ggml_cont(context, ggml_view_2d(context, small, kSize, kHeads, x->nb[1], 0));
  ggml_tensor* states = ggml_repeat_4d(context, first, kSize, kHeads, kSize, 1);
  ggml_tensor* state = ggml_reshape_2d(context, states, kSize * kSize * kHeads, 1);
  ggml_tensor* matrices = ggml_reshape_4d(context, states, kSize, kSize, kHeads, 1);

  Tensors outputs;
  for (ggml_tensor* result :
       {ggml_rwkv_wkv6(context, x, x, x, first, x, state), ggml_rwkv_wkv7(context, x, x, x, x, x, x, state),
        ggml_gated_linear_attn(context, x, x, x, x, state, 0.25f),
        ggml_gated_delta_net(context, x, x, x, gate, gate, matrices, 1)}) {
    // Behind the outputs lies the new state.
    outputs.push_back(ggml_cont(context, ggml_view_1d(context, result, kSize * kHeads * n, 0)));
  }
  return outputs;
}

TEST("recurrences give a token the same bits whatever tokens follow") {
  GraphKernels kernels(kDeterministic);
  Machine machine(&kernels);

  check_rows_alone_and_together(machine, recurrences);
  CHECK_EQ(kernels.violation(), "");
}

TEST("an operation that looks at its neighbours breaks the promise, and is named") {
  GraphKernels kernels(kDeterministic);
  Machine machine(&kernels);
  const Graph::Build sums = [](ggml_context* context, ggml_tensor* input) -> Tensors {
    return {ggml_cumsum(context, input)};
  };
  Graph(machine, 2, sums).compute(input_of(2, 1));

  CHECK(kernels.violation().find("CUMSUM of f32") != std::string::npos);
}

KERNEL_TEST(best_products() != nullptr, "weights are packed up to the limit, and each once") {
  Machine bare(nullptr);
  const Weights weights(bare, GGML_TYPE_Q4_1, {16, 16, 16});
  GraphKernels kernels({best_products(), nullptr, nullptr, 2 * weights.bytes(0) + weights.bytes(0) / 2, false});
  Machine machine(&kernels);

  check_against_ggml(machine, 5, layer(weights), 4);  // all but the products with the third
  const size_t bytes = kernels.bytes();
  check_against_ggml(machine, 6, layer(weights), 4);

  CHECK_EQ(kernels.bytes(), bytes);
  CHECK(bytes >= 2 * weights.bytes(0) && bytes < 3 * weights.bytes(0));
}

// Keys, values and masks of two streams with 100 cells, of which a token sees some; three heads share a key head.
class Cache {
 public:
  static constexpr int64_t kHeadSize = 16, kKeyHeads = 2, kHeads = 6, kCells = 100, kStreams = 2, kMaxRows = 80;

  explicit Cache(Machine& machine) : context_(ggml_init({4 * ggml_tensor_overhead(), nullptr, true})) {
    for (ggml_tensor** halves : {&keys_, &values_}) {
      *halves = ggml_new_tensor_4d(context_.get(), GGML_TYPE_F16, kHeadSize, kKeyHeads, kCells, kStreams);
    }
    mask_ = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F16, kCells, kMaxRows * kStreams);
    sinks_ = ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, kHeads);
    buffer_ = ggml_backend_alloc_ctx_tensors(context_.get(), machine.backend());
    const Values sinks{0.5f, -2.0f, 3.0f, 0.0f, 1.5f, -30.0f};
    ggml_backend_tensor_set(sinks_, sinks.data(), 0, ggml_nbytes(sinks_));
    set(keys_, random_values(static_cast<size_t>(ggml_nelements(keys_)), 1));
    set(values_, random_values(static_cast<size_t>(ggml_nelements(values_)), 2));
    Values mask = random_values(static_cast<size_t>(ggml_nelements(mask_)), 3);
    for (float& value : mask) value = value > 0.5f ? -INFINITY : 0.0f;
    set(mask_, mask);
  }
  ~Cache() { ggml_backend_buffer_free(buffer_); }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // Attention with the input's rows as queries, half of them in each stream.
  Graph::Build attention(float max_bias = 0, float softcap = 0, bool has_sinks = false) const {
    return [=](ggml_context* context, ggml_tensor* input) -> Tensors {
      const int64_t n_rows = input->ne[1] / kStreams;
      ggml_tensor* queries = ggml_reshape_4d(context, input, kHeadSize, kHeads, n_rows, kStreams);
      const size_t row = mask_->nb[1], rows = row * static_cast<size_t>(n_rows);
      ggml_tensor* mask = ggml_view_4d(context, mask_, kCells, n_rows, 1, kStreams, row, rows, rows, 0);
      ggml_tensor* heads = ggml_flash_attn_ext(context, swapped(context, queries), swapped(context, keys_),
                                               swapped(context, values_), mask, 0.25f, max_bias, softcap);
      if (has_sinks) ggml_flash_attn_ext_add_sinks(heads, sinks_);
      return {heads};
    };
  }

 private:
  // Heads behind rows, as ggml wants them.
  static ggml_tensor* swapped(ggml_context* context, ggml_tensor* tensor) {
    return ggml_permute(context, tensor, 0, 2, 1, 3);
  }

  static void set(ggml_tensor* tensor, const Values& values) {
    std::vector<ggml_fp16_t> halves(values.size());
    ggml_fp32_to_fp16_row(values.data(), halves.data(), static_cast<int64_t>(values.size()));
    ggml_backend_tensor_set(tensor, halves.data(), 0, ggml_nbytes(tensor));
  }

  const Context context_;
  ggml_tensor *keys_, *values_, *mask_, *sinks_;
  ggml_backend_buffer_t buffer_;
};

KERNEL_TEST(best_attention() != nullptr,
            "attention is ggml's but for rounding, also in a graph that is computed again") {
  GraphKernels kernels(kFaster);
  Machine machine(&kernels);
  const Cache cache(machine);

  // ggml rounds queries and sums to 16 bits. Other cells or other rows move an output by more than a tenth.
  for (const bool has_sinks : {false, true}) {
    const Graph::Build attention = cache.attention(0, 0, has_sinks);
    for (const int64_t n_rows : {2, 14, 160}) check_against_ggml(machine, n_rows, attention, 1, 3, 5e-3f);
  }
}

KERNEL_TEST(best_attention() != nullptr, "attention of a token gives the same bits alone and among others") {
  GraphKernels kernels(kFaster);
  Machine machine(&kernels);
  const Cache cache(machine);
  const Values input = input_of(160, 1);
  const Values together = Graph(machine, 160, cache.attention()).compute(input)[0];

  // The first stream's first token comes first whatever else is computed.
  const Values alone = Graph(machine, 2, cache.attention()).compute(input)[0];

  CHECK(std::memcmp(alone.data(), together.data(), kColumns * sizeof(float)) == 0);
}

KERNEL_TEST(best_attention() != nullptr,
            "attention that has several kernels in ggml breaks the promise unless ours computes it") {
  GraphKernels kernels(kDeterministic);
  Machine machine(&kernels);
  const Cache cache(machine);

  Graph(machine, 2, cache.attention()).compute(input_of(2, 1));
  CHECK_EQ(kernels.violation(), "");
  Graph(machine, 2, cache.attention(0.0f, 30.0f)).compute(input_of(2, 1));
  CHECK(kernels.violation().find("FLASH_ATTN_EXT of f16") != std::string::npos);
}

TEST("attention with a bias by distance or a cap stays ggml's") {
  GraphKernels kernels(kFaster);
  Machine machine(&kernels);
  const Cache cache(machine);

  check_against_ggml(machine, 4, cache.attention(8.0f), 0);
  check_against_ggml(machine, 4, cache.attention(0.0f, 30.0f), 0);
}

}  // namespace
}  // namespace corosrv
