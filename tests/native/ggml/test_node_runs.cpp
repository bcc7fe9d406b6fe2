// Runs of nodes inside ggml's own scheduler, next to what ggml computes by itself: all of a layer.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "check.h"
#include "graphs.h"
#include "kernels/graph_kernels.h"
#include "kernels/kernel_test.h"

namespace {

thread_local int n_left = -1;  // allocations until one fails; below 0: none will

void* allocated(void* memory) {
  if (memory == nullptr || (n_left >= 0 && n_left-- == 0)) {
    std::free(memory);
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

// Not inlined: compilers warn of what is allocated by one of these, and freed by free().
[[gnu::noinline]] void* operator new(size_t size) { return allocated(std::malloc(size)); }
[[gnu::noinline]] void* operator new(size_t size, std::align_val_t alignment) {
  return allocated(std::aligned_alloc(static_cast<size_t>(alignment), size));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace corosrv {
namespace {

// What a layer of a small llama keeps: norms, positions, caches of one key head, and who sees which cell of them.
class Layer {
 public:
  static constexpr int64_t kHeadSize = 32, kHeads = kColumns / kHeadSize, kInner = 160, kCells = 96, kMaxRows = 80;

  explicit Layer(Machine& machine)
      : attention_(machine, GGML_TYPE_Q8_0, {kColumns, kHeadSize, kHeadSize, kColumns}),
        inner_(machine, GGML_TYPE_Q8_0, {kInner, kInner}),
        down_(machine, GGML_TYPE_Q8_0, {kColumns}, GGML_BACKEND_BUFFER_USAGE_WEIGHTS, kInner),
        context_(ggml_init({8 * ggml_tensor_overhead(), nullptr, true})) {
    for (ggml_tensor*& norm : norms_) norm = ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, kColumns);
    for (ggml_tensor*& cache : caches_) cache = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F16, kHeadSize, kCells);
    positions_ = ggml_new_tensor_1d(context_.get(), GGML_TYPE_I32, kMaxRows);
    rows_ = ggml_new_tensor_1d(context_.get(), GGML_TYPE_I64, kMaxRows);
    mask_ = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F16, kCells, kMaxRows);
    buffer_ = ggml_backend_alloc_ctx_tensors(context_.get(), machine.backend());
    ggml_backend_buffer_clear(buffer_, 0);
    for (ggml_tensor* norm : norms_) {
      Values values = random_values(kColumns, 5);
      for (float& value : values) value *= 0.1f;
      ggml_backend_tensor_set(norm, values.data(), 0, ggml_nbytes(norm));
    }
    for (int64_t row = 0; row < kMaxRows; ++row) place(row, row + 7);
  }
  ~Layer() { ggml_backend_buffer_free(buffer_); }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  // The rows are consecutive tokens: each sees itself and those before it.
  Graph::Build build(int mode) const {
    return [=, this_layer = this](ggml_context* context, ggml_tensor* input) -> Tensors {
      return {this_layer->gated(context, this_layer->attended(context, input, mode))};
    };
  }

 private:
  void place(int64_t row, int64_t cell) {
    const auto position = static_cast<int32_t>(3 * row);
    ggml_backend_tensor_set(positions_, &position, static_cast<size_t>(row) * sizeof position, sizeof position);
    ggml_backend_tensor_set(rows_, &cell, static_cast<size_t>(row) * sizeof cell, sizeof cell);
    std::vector<ggml_fp16_t> shown(kCells, 0xfc00);
    for (int64_t seen = 7; seen <= cell; ++seen) shown[static_cast<size_t>(seen)] = 0;
    ggml_backend_tensor_set(mask_, shown.data(), static_cast<size_t>(row) * mask_->nb[1], mask_->nb[1]);
  }

  ggml_tensor* normalized(ggml_context* context, ggml_tensor* input, size_t i) const {
    return ggml_mul(context, ggml_rms_norm(context, input, 1e-5f), norms_[i]);
  }

  ggml_tensor* rotated(ggml_context* context, ggml_tensor* rows, int mode) const {
    ggml_tensor* heads = ggml_reshape_3d(context, rows, kHeadSize, rows->ne[0] / kHeadSize, rows->ne[1]);
    ggml_tensor* positions = ggml_view_1d(context, positions_, rows->ne[1], 0);
    return ggml_rope_ext(context, heads, positions, nullptr, kHeadSize, mode, 0, 1e4f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f);
  }

  // Writes the rows to a cache, and returns all of its cells as one head.
  ggml_tensor* kept(ggml_context* context, ggml_tensor* cache, ggml_tensor* rows) const {
    ggml_tensor* places = ggml_view_1d(context, rows_, rows->ne[1], 0);
    ggml_tensor* cells = ggml_set_rows(context, cache, rows, places);
    return ggml_permute(context, ggml_reshape_3d(context, cells, kHeadSize, 1, kCells), 0, 2, 1, 3);
  }

  ggml_tensor* attended(ggml_context* context, ggml_tensor* input, int mode) const {
    const int64_t n_rows = input->ne[1];
    ggml_tensor* normal = normalized(context, input, 0);
    ggml_tensor* queries = rotated(context, ggml_mul_mat(context, attention_[0], normal), mode);
    ggml_tensor* values = ggml_mul_mat(context, attention_[1], normal);
    ggml_tensor* keys = rotated(context, ggml_mul_mat(context, attention_[2], normal), mode);
    keys = kept(context, caches_[0], ggml_reshape_2d(context, keys, kHeadSize, n_rows));
    values = kept(context, caches_[1], values);
    ggml_tensor* mask = ggml_view_2d(context, mask_, kCells, n_rows, mask_->nb[1], 0);
    ggml_tensor* heads =
        ggml_flash_attn_ext(context, ggml_permute(context, queries, 0, 2, 1, 3), keys, values, mask, 0.2f, 0.0f, 0.0f);
    ggml_tensor* rows = ggml_reshape_2d(context, heads, kColumns, n_rows);
    return ggml_add(context, ggml_mul_mat(context, attention_[3], rows), input);
  }

  ggml_tensor* gated(ggml_context* context, ggml_tensor* input) const {
    ggml_tensor* normal = normalized(context, input, 1);
    ggml_tensor* gates = ggml_mul_mat(context, inner_[0], normal);
    ggml_tensor* inner = ggml_swiglu_split(context, gates, ggml_mul_mat(context, inner_[1], normal));
    return ggml_add(context, ggml_mul_mat(context, down_[0], inner), input);
  }

  const Weights attention_, inner_, down_;
  const Context context_;
  ggml_tensor *norms_[2], *caches_[2], *positions_, *rows_, *mask_;
  ggml_backend_buffer_t buffer_;
};

// What a layer of a mixture of experts does with its input: three of eight for each row, by shares. With biases it is
// one of gpt-oss.
class Mixture {
 public:
  static constexpr int64_t kInner = 160, kExperts = 8, kUsed = 3;

  explicit Mixture(Machine& machine)
      : inner_(machine, GGML_TYPE_Q8_0, {kInner, kInner}, kWeights, kColumns, kExperts),
        down_(machine, GGML_TYPE_Q8_0, {kColumns}, kWeights, kInner, kExperts),
        biases_(machine, GGML_TYPE_F32, {kExperts, kExperts}, kWeights, kInner),
        down_biases_(machine, GGML_TYPE_F32, {kExperts}, kWeights) {}

  Graph::Build build(bool has_biases = false) const {
    return [this, has_biases](ggml_context* context, ggml_tensor* input) -> Tensors {
      const int64_t n_rows = input->ne[1];
      ggml_tensor* scores = ggml_cont(context, ggml_view_2d(context, input, kExperts, n_rows, input->nb[1], 0));
      ggml_tensor* order = ggml_argsort(context, scores, GGML_SORT_ORDER_DESC);
      ggml_tensor* best = ggml_view_2d(context, order, kUsed, n_rows, order->nb[1], 0);
      ggml_tensor* shares = ggml_get_rows(context, ggml_reshape_3d(context, scores, 1, kExperts, n_rows), best);
      ggml_tensor* rows = ggml_reshape_3d(context, input, kColumns, 1, n_rows);
      const auto product = [&](ggml_tensor* weights, ggml_tensor* biases, ggml_tensor* inputs) {
        ggml_tensor* outputs = ggml_mul_mat_id(context, weights, inputs, best);
        return has_biases ? ggml_add_id(context, outputs, biases, best) : outputs;
      };
      ggml_tensor* values = product(inner_[0], biases_[0], rows);
      ggml_tensor* gates = product(inner_[1], biases_[1], rows);
      ggml_tensor* inner = has_biases ? ggml_swiglu_oai(context, gates, values, kGateSteepness, kGateLimit)
                                      : ggml_swiglu_split(context, gates, values);
      ggml_tensor* outputs = product(down_[0], down_biases_[0], inner);
      outputs = ggml_mul(context, outputs, shares);
      ggml_tensor* sum = part(context, outputs, 0);
      for (size_t i = 1; i < kUsed; ++i) sum = ggml_add(context, sum, part(context, outputs, i));
      return {shares, sum};  // as libllama orders them
    };
  }

 private:
  static constexpr ggml_backend_buffer_usage kWeights = GGML_BACKEND_BUFFER_USAGE_WEIGHTS;

  static ggml_tensor* part(ggml_context* context, ggml_tensor* outputs, size_t expert) {
    return ggml_view_2d(context, outputs, kColumns, outputs->ne[2], outputs->nb[2], expert * outputs->nb[1]);
  }

  const Weights inner_, down_, biases_, down_biases_;
};

float largest(const Values& values) {
  return std::fabs(
      *std::max_element(values.begin(), values.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
}

KERNEL_TEST(best_products() != nullptr && best_elements() != nullptr,
            "all of a layer is one operation, near what its nodes give one by one, also when it is computed again") {
  GraphKernels kernels(kFaster), products({best_products(), best_attention(), nullptr, kNoLimit, false});
  Machine machine(&kernels), one_by_one(&products), ggml(nullptr);
  const Layer layer(machine), layer_of_nodes(one_by_one), layer_of_ggml(ggml);

  for (const int mode : {GGML_ROPE_TYPE_NORMAL, GGML_ROPE_TYPE_NEOX}) {
    for (const int64_t n_rows : {1, 33, 2, 70, 8}) {
      Graph graph(machine, n_rows, layer.build(mode)), nodes(one_by_one, n_rows, layer_of_nodes.build(mode)),
          reference(ggml, n_rows, layer_of_ggml.build(mode));
      for (unsigned seed = 1; seed <= 3; ++seed) {
        const Values input = input_of(n_rows, seed);
        const std::vector<Values> ours = graph.compute(input), theirs = reference.compute(input);
        const float size = largest(theirs[0]);
        // A sum that rounds otherwise moves a few quants by one. ggml rounds what attention adds up to 16 bits.
        CHECK(largest_difference(ours, nodes.compute(input)) < 0.01f * size);
        CHECK(largest_difference(ours, theirs) < 0.03f * size);
      }
      CHECK_EQ(graph.n_operations(), 1u);
    }
  }
}

KERNEL_TEST(best_products() != nullptr && best_elements() != nullptr,
            "a row of a layer gives the same bits alone and among others") {
  GraphKernels kernels(kFaster);
  Machine machine(&kernels);
  const Layer layer(machine);
  const Graph::Build build = layer.build(GGML_ROPE_TYPE_NORMAL);
  const Values input = input_of(80, 1);
  const Values together = Graph(machine, 80, build).compute(input)[0];

  for (const int64_t n_rows : {1, 2, 3, 9, 33}) {
    const Values few = Graph(machine, n_rows, build).compute(input)[0];
    CHECK(std::memcmp(few.data(), together.data(), few.size() * sizeof(float)) == 0);
  }
}

KERNEL_TEST(best_products() != nullptr && best_elements() != nullptr,
            "the experts of a mixture are one operation, near what ggml computes, and no row needs another") {
  GraphKernels kernels(kFaster);
  Machine machine(&kernels), ggml(nullptr);
  const Mixture mixture(machine), mixture_of_ggml(ggml);
  for (const bool has_biases : {false, true})
    for (const int64_t n_rows : {1, 33, 2, 70, 8}) {
      const Values together = Graph(machine, 80, mixture.build(has_biases)).compute(input_of(80, 1))[1];
      Graph graph(machine, n_rows, mixture.build(has_biases)),
          reference(ggml, n_rows, mixture_of_ggml.build(has_biases));
      for (unsigned seed = 1; seed <= 3; ++seed) {
        Values input = input_of(80, seed);
        input.resize(static_cast<size_t>(n_rows * kColumns));
        const std::vector<Values> ours = graph.compute(input), theirs = reference.compute(input);
        CHECK(largest_difference(ours, theirs) < 0.03f * largest(theirs[1]));
        if (seed == 1) CHECK(std::memcmp(ours[1].data(), together.data(), ours[1].size() * sizeof(float)) == 0);
      }
      CHECK_EQ(graph.n_operations(), reference.n_operations() - (has_biases ? 9 : 6));
    }
}

// The kernels, and how many more of their allocations succeed before one fails.
struct ShortOfMemory {
  int n_allocations;
  GraphKernels kernels{kFaster};

  static bool on_node(ggml_tensor* node, bool ask, void* user_data) {
    auto& self = *static_cast<ShortOfMemory*>(user_data);
    n_left = self.n_allocations;
    GraphKernels::on_node(node, ask, &self.kernels);
    self.n_allocations = n_left;
    n_left = -1;
    return false;
  }
};

KERNEL_TEST(best_products() != nullptr && best_elements() != nullptr,
            "a layer is the same whatever there is no memory for, also when it is computed again") {
  Machine machine(nullptr), ggml(nullptr);
  const Layer layer(machine), layer_of_ggml(ggml);
  const Mixture mixture(machine), mixture_of_ggml(ggml);
  const auto both = [](const Layer& dense, const Mixture& experts) -> Graph::Build {
    return [&](ggml_context* context, ggml_tensor* input) {
      return experts.build()(context, dense.build(GGML_ROPE_TYPE_NORMAL)(context, input)[0]);
    };
  };
  const Values input = input_of(8, 1);
  const std::vector<Values> expected = Graph(ggml, 8, both(layer_of_ggml, mixture_of_ggml)).compute(input);
  const float size = largest(expected[1]);

  bool has_failed = true;
  for (int n = 0; has_failed; ++n) {
    ShortOfMemory shortage{n};
    ggml_backend_sched_set_eval_callback(machine.scheduler(), &ShortOfMemory::on_node, &shortage);
    Graph graph(machine, 8, both(layer, mixture));
    for (int i = 0; i < 2; ++i) CHECK(largest_difference(graph.compute(input), expected) < 0.03f * size);
    has_failed = shortage.n_allocations < 0;
  }
}

KERNEL_TEST(best_elements() != nullptr, "rotations are ggml's: of a part of a head, stretched, by factors") {
  GraphKernels kernels(kFaster);
  Machine machine(&kernels);
  const Context leaves(ggml_init({2 * ggml_tensor_overhead(), nullptr, true}));
  ggml_tensor* positions = ggml_new_tensor_1d(leaves.get(), GGML_TYPE_I32, 40);
  ggml_tensor* factors = ggml_new_tensor_1d(leaves.get(), GGML_TYPE_F32, 48);
  ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(leaves.get(), machine.backend());
  for (int32_t i = 0; i < 40; ++i) {
    const int32_t position = i * 37;
    ggml_backend_tensor_set(positions, &position, static_cast<size_t>(i) * sizeof position, sizeof position);
  }
  Values stretches = random_values(48, 3);
  for (float& stretch : stretches) stretch = 1.5f + std::fabs(stretch);
  ggml_backend_tensor_set(factors, stretches.data(), 0, ggml_nbytes(factors));

  struct Variant {
    int mode, n_numbers;
    bool has_factors;
    float scale, extrapolation;
  };
  for (const Variant& variant : {Variant{GGML_ROPE_TYPE_NORMAL, 96, false, 1, 0},
                                 {GGML_ROPE_TYPE_NEOX, 96, true, 1, 0},
                                 {GGML_ROPE_TYPE_NORMAL, 64, true, 0.25f, 1},
                                 {GGML_ROPE_TYPE_NEOX, 32, false, 0.25f, 1},
                                 {GGML_ROPE_TYPE_NEOX, 64, false, 0.5f, 0}}) {
    const Graph::Build build = [&](ggml_context* context, ggml_tensor* input) -> Tensors {
      ggml_tensor* heads = ggml_reshape_3d(context, input, kColumns, 1, input->ne[1]);
      ggml_tensor* which = ggml_view_1d(context, positions, input->ne[1], 0);
      return {ggml_rope_ext(context, heads, which, variant.has_factors ? factors : nullptr, variant.n_numbers,
                            variant.mode, 512, 1e4f, variant.scale, variant.extrapolation, 1.1f, 32.0f, 1.0f)};
    };
    for (const int64_t n_rows : {1, 40, 7}) check_against_ggml(machine, n_rows, build, 1, 2, 2e-3f);
  }
  ggml_backend_buffer_free(buffer);
}

KERNEL_TEST(best_elements() != nullptr, "rotations wait for factors that the graph computes") {
  GraphKernels kernels(kFaster);
  Machine machine(&kernels);
  const Context leaves(ggml_init({2 * ggml_tensor_overhead(), nullptr, true}));
  ggml_tensor* positions = ggml_new_tensor_1d(leaves.get(), GGML_TYPE_I32, 96);
  ggml_tensor* factors = ggml_new_tensor_1d(leaves.get(), GGML_TYPE_F32, 4096);
  ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(leaves.get(), machine.backend());
  const std::vector<int32_t> where(96, 37);
  ggml_backend_tensor_set(positions, where.data(), 0, ggml_nbytes(positions));
  const Graph::Build build = [&](ggml_context* context, ggml_tensor* input) -> Tensors {
    ggml_tensor* heads = ggml_reshape_3d(context, input, 32, 3, input->ne[1]);
    // The first numbers of a long row, which is the share of one thread, and not of the first one.
    ggml_tensor* squares = ggml_mul(context, factors, factors);
    for (int i = 0; i < 8; ++i) squares = ggml_add(context, squares, squares);
    ggml_tensor* which = ggml_view_1d(context, positions, input->ne[1], 0);
    return {ggml_rope_ext(context, heads, which, squares, 32, GGML_ROPE_TYPE_NEOX, 512, 1e4f, 1, 0, 1, 32, 1)};
  };
  for (const float factor : {0.1f, 0.3f, 0.5f, 0.7f}) {
    const Values same(4096, factor);
    ggml_backend_tensor_set(factors, same.data(), 0, ggml_nbytes(factors));
    check_against_ggml(machine, 96, build, 1, 2, 2e-3f);
  }
  ggml_backend_buffer_free(buffer);
}

KERNEL_TEST(best_elements() != nullptr,
            "rotations of a whole long cache stay ggml's: their angles would take much memory") {
  constexpr int64_t kCells = (1 << 16) + 1;
  GraphKernels kernels(kFaster);
  Machine machine(&kernels);
  const Context leaves(ggml_init({ggml_tensor_overhead(), nullptr, true}));
  ggml_tensor* shifts = ggml_new_tensor_1d(leaves.get(), GGML_TYPE_I32, kCells);
  ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(leaves.get(), machine.backend());
  const std::vector<int32_t> shift(kCells, -5);
  ggml_backend_tensor_set(shifts, shift.data(), 0, ggml_nbytes(shifts));
  const Graph::Build build = [&](ggml_context* context, ggml_tensor* input) -> Tensors {
    ggml_tensor* heads = ggml_reshape_3d(context, input, 32, 3, input->ne[1]);
    return {ggml_rope_ext(context, heads, shifts, nullptr, 32, GGML_ROPE_TYPE_NEOX, 512, 1e4f, 1, 0, 1, 32, 1)};
  };
  check_against_ggml(machine, kCells, build, 0);
  ggml_backend_buffer_free(buffer);
}

KERNEL_TEST(best_elements() != nullptr, "gates by GELU are ggml's, which rounds them to 16 bits") {
  GraphKernels kernels(kFaster);
  Machine machine(&kernels);
  const Graph::Build build = [](ggml_context* context, ggml_tensor* input) -> Tensors {
    return {ggml_geglu_split(context, input, ggml_mul(context, input, input))};
  };
  for (const int64_t n_rows : {1, 20}) check_against_ggml(machine, n_rows, build, 1, 2, 2e-2f);
}

KERNEL_TEST(best_products() != nullptr && best_elements() != nullptr,
            "gates are those of all columns, also where another product lies between them and their own") {
  GraphKernels kernels(kFaster);
  Machine machine(&kernels);
  const Weights weights(machine, GGML_TYPE_Q8_0, {160, 160, 64});
  const Graph::Build build = [&](ggml_context* context, ggml_tensor* input) -> Tensors {
    ggml_tensor *gates = ggml_mul_mat(context, weights[0], input), *values = ggml_mul_mat(context, weights[1], input);
    return {gates, values, ggml_mul_mat(context, weights[2], input), ggml_swiglu_split(context, gates, values)};
  };
  for (const int64_t n_rows : {1, 20}) check_against_ggml(machine, n_rows, build, 4, 2, 2e-3f);
}

KERNEL_TEST(best_elements() != nullptr, "a run is computed also where the last node of ours has no rows") {
  GraphKernels kernels(kFaster);
  Machine machine(&kernels);
  const Graph::Build build = [](ggml_context* context, ggml_tensor* input) -> Tensors {
    ggml_tensor* none = ggml_view_2d(context, input, kColumns, 0, input->nb[1], 0);
    return {ggml_add(context, input, input), ggml_mul(context, none, none)};
  };
  check_against_ggml(machine, 5, build, 1, 2);
}

KERNEL_TEST(best_products() != nullptr,
            "a product's columns are converted for another one also where it has other rows") {
  GraphKernels kernels(kFaster);
  Machine machine(&kernels);
  const Weights first(machine, GGML_TYPE_Q8_0, {64}),
      wide(machine, GGML_TYPE_Q8_0, {32}, GGML_BACKEND_BUFFER_USAGE_WEIGHTS, 128),
      narrow(machine, GGML_TYPE_Q8_0, {32}, GGML_BACKEND_BUFFER_USAGE_WEIGHTS, 32);
  for (const int64_t n_columns : {128, 32}) {
    const Weights& second = n_columns == 128 ? wide : narrow;
    const Graph::Build build = [&](ggml_context* context, ggml_tensor* input) -> Tensors {
      ggml_tensor* product = ggml_mul_mat(context, first[0], input);
      return {ggml_mul_mat(context, second[0],
                           ggml_reshape_2d(context, product, n_columns, ggml_nelements(product) / n_columns))};
    };
    check_against_ggml(machine, 6, build, 1, 2, 2e-3f);
  }
}

KERNEL_TEST(best_elements() != nullptr,
            "gates and values may be halves of the same rows, of which each has the same bits alone") {
  GraphKernels kernels(kFaster);
  Machine machine(&kernels);
  const Graph::Build build = [](ggml_context* context, ggml_tensor* input) -> Tensors {
    const auto half = [&](size_t i) {
      return ggml_view_2d(context, input, kColumns / 2, input->ne[1], input->nb[1], i * input->nb[1] / 2);
    };
    return {ggml_swiglu_split(context, half(0), half(1))};
  };
  const Values input = input_of(9, 1);
  const Values together = Graph(machine, 9, build).compute(input)[0],
               alone = Graph(machine, 1, build).compute(input)[0];
  CHECK(std::memcmp(alone.data(), together.data(), alone.size() * sizeof(float)) == 0);
  check_against_ggml(machine, 9, build, 1, 2);
}

KERNEL_TEST(best_elements() != nullptr, "what is no node of a layer's kind stays ggml's, and ends a run") {
  GraphKernels kernels(kFaster);
  Machine machine(&kernels);
  const Graph::Build build = [](ggml_context* context, ggml_tensor* input) -> Tensors {
    ggml_tensor* half = ggml_view_2d(context, input, 8, input->ne[1], input->nb[1], 0);  // no whole register
    ggml_tensor* columns = ggml_cont(context, ggml_transpose(context, input));
    return {ggml_add(context, half, half), ggml_reglu_split(context, input, input), ggml_rms_norm(context, columns, 1)};
  };

  check_against_ggml(machine, 5, build, 0);
  Graph mixed(machine, 16, [](ggml_context* context, ggml_tensor* input) -> Tensors {
    ggml_tensor* first = ggml_add(context, ggml_mul(context, input, input), input);
    return {ggml_rms_norm(context, ggml_scale(context, first, 2.0f), 1e-5f)};
  });
  mixed.compute(input_of(16, 1));
  CHECK_EQ(mixed.n_operations(), 3u);  // a run, the scaling, and a norm
}

}  // namespace
}  // namespace corosrv
