// Random graphs of the nodes that we compute, by threads of this test's own instead of ggml's: ThreadSanitizer then
// sees all that they do, and each wait that a run lacks is a race.
#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "graphs.h"
#include "kernels/graph_kernels.h"
#include "kernels/kernel_test.h"

namespace corosrv {
namespace {

constexpr int64_t kHeadSize = 32, kCells = 48, kMostRows = 48, kExperts = 5, kUsedExperts = 2;
const std::vector<int64_t> kWidths{32, 64, 96};

// What random graphs are made of besides their input.
class Leaves {
 public:
  explicit Leaves(Machine& machine) : context_(ggml_init({16 * ggml_tensor_overhead(), nullptr, true})) {
    positions_ = ggml_new_tensor_1d(context_.get(), GGML_TYPE_I32, kMostRows);
    shares_ = ggml_new_tensor_3d(context_.get(), GGML_TYPE_F32, 1, kUsedExperts, kMostRows);
    for (ggml_tensor*& ids : ids_) ids = ggml_new_tensor_2d(context_.get(), GGML_TYPE_I32, kUsedExperts, kMostRows);
    places_ = ggml_new_tensor_1d(context_.get(), GGML_TYPE_I64, kMostRows);
    mask_ = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F16, kCells, kMostRows);
    for (ggml_tensor*& cache : caches_) cache = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F16, kHeadSize, kCells);
    for (const int64_t width : kWidths) {
      biases_[width] = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, width, kExperts);
    }
    for (const int64_t width : kWidths) rows_[width] = ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, width);
    buffer_ = ggml_backend_alloc_ctx_tensors(context_.get(), machine.backend());
    ggml_backend_buffer_clear(buffer_, 0);
    for (int32_t i = 0; i < kMostRows; ++i) {
      const int64_t place = (i * 5 + 3) % kCells;
      ggml_backend_tensor_set(positions_, &i, static_cast<size_t>(i) * sizeof i, sizeof i);
      ggml_backend_tensor_set(places_, &place, static_cast<size_t>(i) * sizeof place, sizeof place);
    }
    const Values shares = random_values(kUsedExperts * kMostRows, 6);
    ggml_backend_tensor_set(shares_, shares.data(), 0, ggml_nbytes(shares_));
    std::mt19937 random(3);
    for (ggml_tensor* ids : ids_) {
      for (size_t i = 0; i < kMostRows * kUsedExperts; i += kUsedExperts) {
        const auto first = static_cast<int32_t>(random() % kExperts);
        const int32_t pair[] = {first, (first + 2) % static_cast<int32_t>(kExperts)};
        ggml_backend_tensor_set(ids, pair, i * sizeof(int32_t), sizeof pair);
      }
    }
    for (const int64_t width : kWidths) {
      const Values row = random_values(static_cast<size_t>(width), 5);
      const Values biases = random_values(static_cast<size_t>(width * kExperts), 8);
      ggml_backend_tensor_set(biases_[width], biases.data(), 0, ggml_nbytes(biases_[width]));
      ggml_backend_tensor_set(rows_[width], row.data(), 0, ggml_nbytes(rows_[width]));
      for (const ggml_type type : {GGML_TYPE_Q8_0, GGML_TYPE_BF16, GGML_TYPE_F16}) {
        weights_[width].push_back(std::make_unique<Weights>(machine, type, std::vector<int64_t>{32, 64, 96, 16, 48},
                                                            GGML_BACKEND_BUFFER_USAGE_WEIGHTS, width));
        experts_[width].push_back(std::make_unique<Weights>(machine, type, std::vector<int64_t>{32, 64, 96},
                                                            GGML_BACKEND_BUFFER_USAGE_WEIGHTS, width, kExperts));
      }
    }
  }
  ~Leaves() { ggml_backend_buffer_free(buffer_); }
  Leaves(const Leaves&) = delete;
  Leaves& operator=(const Leaves&) = delete;

  void clear_caches() const {
    for (ggml_tensor* cache : caches_) ggml_backend_tensor_memset(cache, 0, 0, ggml_nbytes(cache));
  }

  // Every seed gives another graph, always the same one.
  Graph::Build build(unsigned seed) const {
    return [this, seed](ggml_context* context, ggml_tensor* input) -> Tensors {
      std::mt19937 random(seed);
      Tensors made{input};
      for (size_t n = 5 + random() % 15; n > 0; --n) {
        // The last ones, mostly: so nodes are what one node of a layer is to another.
        const size_t back = random() % 3 > 0 ? random() % 3 : random() % made.size();
        ggml_tensor* node = made[made.size() - 1 - std::min(made.size() - 1, back)];
        node = add(context, random, node, made);
        if (node != nullptr && ggml_nelements(node) <= 8 * kMostRows * kHeadSize) made.push_back(node);
      }
      made.push_back(ggml_rms_norm(context, whole_sum(context, made), 1e-5f));
      return {made.back()};
    };
  }

 private:
  static bool is_wide(const ggml_tensor* x) {
    return std::find(kWidths.begin(), kWidths.end(), x->ne[0]) != kWidths.end();
  }

  // Twice the last tensor that is not a part of another one.
  static ggml_tensor* whole_sum(ggml_context* context, const Tensors& made) {
    for (auto last = made.rbegin(); last != made.rend(); ++last) {
      if (ggml_is_contiguous(*last)) return ggml_add(context, *last, *last);
    }
    return nullptr;
  }

  ggml_tensor* product(ggml_context* context, std::mt19937& random, ggml_tensor* x, size_t matrix) const {
    return ggml_mul_mat(context, (*weights_.at(x->ne[0])[random() % 3])[matrix], x);
  }

  ggml_tensor* rotated(ggml_context* context, std::mt19937& random, ggml_tensor* x) const {
    ggml_tensor* positions = ggml_view_1d(context, positions_, x->ne[2], 0);
    const int mode = random() % 2 > 0 ? GGML_ROPE_TYPE_NORMAL : GGML_ROPE_TYPE_NEOX;
    return ggml_rope_ext(context, x, positions, nullptr, kHeadSize, mode, 0, 1e4f, 1, 0, 1, 0, 0);
  }

  ggml_tensor* attended(ggml_context* context, std::mt19937& random, ggml_tensor* x) const {
    const int64_t n_rows = x->ne[1];
    ggml_tensor* queries = product(context, random, x, random() % 3);
    queries =
        rotated(context, random, ggml_reshape_3d(context, queries, kHeadSize, queries->ne[0] / kHeadSize, n_rows));
    ggml_tensor* places = ggml_view_1d(context, places_, n_rows, 0);
    ggml_tensor* kept[2];
    for (size_t i = 0; i < 2; ++i) {
      ggml_tensor* rows = product(context, random, x, 0);
      if (random() % 2 > 0) rows = rotated(context, random, ggml_reshape_3d(context, rows, kHeadSize, 1, n_rows));
      rows = ggml_reshape_2d(context, rows, kHeadSize, n_rows);
      ggml_tensor* cells = ggml_set_rows(context, caches_[random() % 2], rows, places);
      kept[i] = ggml_permute(context, ggml_reshape_3d(context, cells, kHeadSize, 1, kCells), 0, 2, 1, 3);
    }
    ggml_tensor* mask = ggml_view_2d(context, mask_, kCells, n_rows, mask_->nb[1], 0);
    ggml_tensor* heads = ggml_flash_attn_ext(context, ggml_permute(context, queries, 0, 2, 1, 3), kept[0], kept[1],
                                             mask, 0.2f, 0.0f, 0.0f);
    return ggml_reshape_2d(context, heads, heads->ne[0] * heads->ne[1], heads->ne[2]);
  }

  ggml_tensor* gated(ggml_context* context, std::mt19937& random, ggml_tensor* x) const {
    const size_t matrix = random() % 3;
    ggml_tensor* gates = product(context, random, x, matrix);
    ggml_tensor* values = product(context, random, random() % 2 > 0 ? x : ggml_rms_norm(context, x, 1e-5f), matrix);
    if (random() % 3 == 0) gates = ggml_add(context, gates, gates);
    return random() % 2 > 0 ? ggml_swiglu_split(context, gates, values) : ggml_geglu_split(context, gates, values);
  }

  ggml_tensor* expert_product(ggml_context* context, std::mt19937& random, ggml_tensor* x, size_t matrix,
                              ggml_tensor* ids) const {
    ggml_tensor* made = ggml_mul_mat_id(context, (*experts_.at(x->ne[0])[random() % 3])[matrix], x, ids);
    return random() % 2 > 0 ? ggml_add_id(context, made, biases_.at(made->ne[0]), ids) : made;
  }

  // A mixture of experts, to the end or as far as the output of each expert.
  ggml_tensor* mixed(ggml_context* context, std::mt19937& random, ggml_tensor* x) const {
    const size_t matrix = random() % 3;
    ggml_tensor* ids = ggml_view_2d(context, ids_[random() % 2], kUsedExperts, x->ne[1], ids_[0]->nb[1], 0);
    ggml_tensor* rows = ggml_reshape_3d(context, x, x->ne[0], 1, x->ne[1]);
    ggml_tensor* made = expert_product(context, random, rows, matrix, ids);
    if (random() % 3 > 0) {
      ggml_tensor* gates = expert_product(context, random, rows, matrix, ids);
      made = random() % 2 > 0 ? ggml_swiglu_oai(context, gates, made, kGateSteepness, kGateLimit)
                              : ggml_swiglu_split(context, gates, made);
      made = expert_product(context, random, made, random() % 3, ids);
    }
    if (random() % 3 == 0) return ggml_reshape_2d(context, made, made->ne[0], ggml_nrows(made));
    made = ggml_mul(context, made,
                    ggml_view_3d(context, shares_, 1, kUsedExperts, x->ne[1], shares_->nb[1], shares_->nb[2], 0));
    ggml_tensor* of_expert[kUsedExperts];
    for (size_t i = 0; i < kUsedExperts; ++i) {
      of_expert[i] = ggml_view_2d(context, made, made->ne[0], made->ne[2], made->nb[2], i * made->nb[1]);
    }
    return ggml_add(context, of_expert[0], of_expert[1]);
  }

  // Null where x is not of the shape that the kind of node needs.
  ggml_tensor* add(ggml_context* context, std::mt19937& random, ggml_tensor* x, Tensors& made) const {
    const bool is_whole = ggml_is_contiguous(x), is_plane = is_whole && x->ne[2] == 1 && x->ne[1] <= kMostRows;
    switch (random() % 14) {
      case 0:
      case 1:
      case 2:
        return is_wide(x) ? product(context, random, x, random() % 5) : nullptr;
      case 3: {
        ggml_tensor* other = made[random() % made.size()];
        return is_whole && ggml_is_contiguous(other) && ggml_are_same_shape(x, other) ? ggml_add(context, x, other)
                                                                                      : nullptr;
      }
      case 4:
        return is_wide(x) && is_whole ? ggml_mul(context, ggml_rms_norm(context, x, 1e-5f), rows_.at(x->ne[0]))
                                      : nullptr;
      case 5:
        return ggml_rms_norm(context, x, 1e-5f);
      case 6:
        return is_wide(x) && is_whole ? gated(context, random, x) : nullptr;
      case 7: {
        const int64_t width = kWidths[random() % kWidths.size()];
        return is_whole && ggml_nelements(x) % width == 0
                   ? ggml_reshape_2d(context, x, width, ggml_nelements(x) / width)
                   : nullptr;
      }
      case 8:
        return is_plane && is_wide(x)
                   ? rotated(context, random, ggml_reshape_3d(context, x, kHeadSize, x->ne[0] / kHeadSize, x->ne[1]))
                   : nullptr;
      case 9:  // rows with gaps between them
        return x->ne[0] == 64
                   ? ggml_view_3d(context, x, 32, x->ne[1], x->ne[2], x->nb[1], x->nb[2], random() % 2 > 0 ? 128 : 0)
                   : nullptr;
      case 10:
        return is_plane && is_wide(x) ? attended(context, random, x) : nullptr;
      case 11:
      case 12:
        return is_plane && is_wide(x) ? mixed(context, random, x) : nullptr;
      default:  // in place: what was there is not to be used any more
        if (x != made.back() || made.size() < 2 || !is_whole || !is_wide(x) || x->view_src != nullptr) return nullptr;
        made.pop_back();
        return ggml_add_inplace(context, x, rows_.at(x->ne[0]));
    }
  }

  const Context context_;
  ggml_tensor *positions_, *places_, *mask_, *caches_[2], *ids_[2], *shares_;
  std::map<int64_t, ggml_tensor*> rows_, biases_;
  std::map<int64_t, std::vector<std::unique_ptr<Weights>>> weights_, experts_;
  ggml_backend_buffer_t buffer_;
};

// Reads what makes a node a custom operation. ggml does not document where it lies: it is asked to make one.
class CustomOperation {
 public:
  CustomOperation() {
    const Context context(ggml_init({4 * ggml_tensor_overhead(), nullptr, true}));
    ggml_tensor* argument = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, 1);
    const ggml_custom_op_t function = [](ggml_tensor*, int, int, void*) {};
    const ggml_tensor* made =
        ggml_custom_4d(context.get(), GGML_TYPE_F32, 1, 1, 1, 1, &argument, 1, function, GGML_N_TASKS_MAX, this);
    function_ = place_of(*made, function);
    data_ = place_of(*made, static_cast<void*>(this));
  }

  void compute(ggml_tensor* node, int n_threads) const {
    ggml_custom_op_t function;
    void* data;
    std::memcpy(&function, params(*node) + function_, sizeof function);
    std::memcpy(&data, params(*node) + data_, sizeof data);
    std::vector<std::thread> threads;
    for (int i = 1; i < n_threads; ++i) threads.emplace_back(function, node, i, n_threads, data);
    function(node, 0, n_threads, data);
    for (std::thread& thread : threads) thread.join();
  }

 private:
  static const char* params(const ggml_tensor& node) { return reinterpret_cast<const char*>(node.op_params); }

  template <typename Pointer>
  static size_t place_of(const ggml_tensor& node, Pointer pointer) {
    size_t place = 0;
    while (std::memcmp(params(node) + place, &pointer, sizeof pointer) != 0) place += sizeof pointer;
    return place;
  }

  size_t function_, data_;
};

KERNEL_TEST(best_products() != nullptr && best_elements() != nullptr,
            "threads compute random graphs as one does, and wait for each other wherever they have to") {
  GraphKernels kernels(kFaster);
  Machine machine(nullptr);
  const Leaves leaves(machine);
  const CustomOperation operation;
  size_t n_computed = 0;
  for (unsigned seed = 1; seed <= 400; ++seed) {
    const int64_t n_rows = std::vector<int64_t>{1, 2, 5, 12}[seed % 4];
    const Values input = input_of(n_rows, seed);
    Graph graph(machine, n_rows, leaves.build(seed));
    kernels.forget_graph();
    for (ggml_tensor* node : graph.nodes()) GraphKernels::on_node(node, true, &kernels);
    std::vector<Values> alone;
    for (const int n_threads : {1, 2, 3, 5}) {
      leaves.clear_caches();
      const std::vector<Values> results = graph.compute_by(input, [&](ggml_tensor* node) {
        CHECK_EQ(node->op, GGML_OP_CUSTOM);
        operation.compute(node, n_threads);
        ++n_computed;
      });
      if (n_threads == 1) alone = results;
      CHECK(std::memcmp(results[0].data(), alone[0].data(), alone[0].size() * sizeof(float)) == 0);
    }
  }
  CHECK_EQ(n_computed, 4u * 400u);  // all of a graph is one operation
}

}  // namespace
}  // namespace corosrv
