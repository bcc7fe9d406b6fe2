#include "kernels/row_products.h"

#include <dlfcn.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>

#include "kernels/tensor_view.h"

namespace corosrv {

namespace {

// Rows of weights and of activations that one thread multiplies at a time: few rows of weights, which stay in the
// first-level cache, with many of activations, so that each weight is read from memory once.
constexpr size_t kTileWeights = 8;
constexpr size_t kTileRows = 64;

// Returns whether a tensor has the layout that ggml documents for its type. Weights rearranged for other kernels lie in
// buffers that do not count as host memory.
bool is_readable(const ggml_tensor& tensor) {
  return (tensor.buffer == nullptr || ggml_backend_buffer_is_host(tensor.buffer)) &&
         tensor.nb[0] == ggml_type_size(tensor.type);
}

bool can_become_float(ggml_type type) {
  return type == GGML_TYPE_F32 || ggml_get_type_traits(type)->to_float != nullptr;
}

}  // namespace

struct RowProducts::Product {
  ggml_tensor& node;
  const ggml_type_traits_cpu& traits;  // of the weights
  const size_t thread;
  const size_t n_threads;
  const bool is_converted;
  size_t n_tiles = 0;  // seen so far; all threads count alike and take tiles in turn

  const ggml_tensor& weights() const { return *node.src[0]; }
  const ggml_tensor& activations() const { return *node.src[1]; }
  // Looks at the third source, not at the operation: a replaced node is a custom operation.
  bool has_experts() const { return node.src[2] != nullptr; }
  bool is_mine() { return n_tiles++ % n_threads == thread; }
};

RowProducts::GetTraits RowProducts::find_traits() {
  // ggml may have loaded one of several libraries for the processor. One of its functions leads to it.
  ggml_backend_dev_t processor = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (processor == nullptr) return nullptr;
  void* function =
      ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(processor), "ggml_backend_set_n_threads");
  Dl_info info;
  if (function == nullptr || ::dladdr(function, &info) == 0) return nullptr;
  void* library = ::dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  const auto found = reinterpret_cast<GetTraits>(::dlsym(library, "ggml_get_type_traits_cpu"));
  ::dlclose(library);
  return found;
}

std::unique_ptr<RowProducts> RowProducts::make() {
  const GetTraits get_traits = find_traits();
  return get_traits == nullptr ? nullptr : std::unique_ptr<RowProducts>(new RowProducts(get_traits));
}

bool RowProducts::can_compute(const ggml_tensor& node) const {
  if (node.op != GGML_OP_MUL_MAT && node.op != GGML_OP_MUL_MAT_ID) return false;
  const ggml_tensor &weights = *node.src[0], &activations = *node.src[1];
  const ggml_type_traits_cpu* traits = get_traits_(weights.type);
  if (traits->vec_dot == nullptr || !is_readable(weights) || !is_readable(activations) || !is_readable(node)) {
    return false;
  }
  return !needs_conversion(node) ||
         (can_become_float(activations.type) && get_traits_(traits->vec_dot_type)->from_float != nullptr);
}

bool RowProducts::needs_conversion(const ggml_tensor& node) const {
  return node.src[1]->type != get_traits_(node.src[0]->type)->vec_dot_type;
}

size_t RowProducts::converted_row_bytes(const ggml_tensor& node) const {
  return ggml_row_size(get_traits_(node.src[0]->type)->vec_dot_type, node.src[1]->ne[0]);
}

void RowProducts::prepare(const ggml_tensor& node) {
  const ggml_tensor& activations = *node.src[1];
  if (needs_conversion(node)) {
    converted_.resize(std::max(converted_.size(), row_count(activations) * converted_row_bytes(node)));
    if (activations.type != GGML_TYPE_F32) {
      floats_.resize(std::max(floats_.size(), GGML_MAX_N_THREADS * extent(activations, 0)));
    }
  }
  if (node.src[2] != nullptr) experts_.reserve(node);
}

void RowProducts::compute(ggml_tensor& node, int thread, int n_threads) {
  Product product{node, *get_traits_(node.src[0]->type), static_cast<size_t>(thread), static_cast<size_t>(n_threads),
                  needs_conversion(node)};
  if (product.is_converted) convert(node, thread, n_threads);
  if (product.has_experts() && thread == 0) experts_.sort(node);
  barrier_.wait(n_threads);

  if (product.has_experts()) {
    for (size_t expert = 0; expert < extent(product.weights(), 2); ++expert) {
      multiply(product, row_at(product.weights(), 0, expert, 0), experts_.begin(expert), experts_.end(expert));
    }
    return;
  }
  // Several planes of activations may share one of weights.
  const ggml_tensor &weights = product.weights(), &activations = product.activations();
  const size_t n_rows = extent(activations, 1), n_shared2 = extent(activations, 2) / extent(weights, 2),
               n_shared3 = extent(activations, 3) / extent(weights, 3);
  for (size_t plane = 0; plane < extent(activations, 2) * extent(activations, 3); ++plane) {
    const size_t i2 = plane % extent(activations, 2), i3 = plane / extent(activations, 2);
    multiply(product, row_at(weights, 0, i2 / n_shared2, i3 / n_shared3), plane * n_rows, (plane + 1) * n_rows);
  }
}

// Converts the thread's share of the activations, row by row.
void RowProducts::convert(const ggml_tensor& node, int thread, int n_threads) {
  const ggml_tensor& activations = *node.src[1];
  const auto from_float = get_traits_(get_traits_(node.src[0]->type)->vec_dot_type)->from_float;
  const size_t row_bytes = converted_row_bytes(node), step = static_cast<size_t>(n_threads);
  for (size_t row = static_cast<size_t>(thread); row < row_count(activations); row += step) {
    const uint8_t* values = row_at(activations, row);
    const float* floats = reinterpret_cast<const float*>(values);
    if (activations.type != GGML_TYPE_F32) {
      float* room = &floats_[static_cast<size_t>(thread) * extent(activations, 0)];
      ggml_get_type_traits(activations.type)->to_float(values, room, activations.ne[0]);
      floats = room;
    }
    from_float(floats, &converted_[row * row_bytes], activations.ne[0]);
  }
}

RowProducts::Row RowProducts::row_of(const Product& product, size_t row) const {
  const size_t output = product.has_experts() ? experts_.row(row) : row;
  const size_t input = product.has_experts() ? expert_input(product.node, output) : row;
  return {product.is_converted ? &converted_[input * converted_row_bytes(product.node)]
                               : row_at(product.activations(), input),
          row_at(product.node, output)};
}

// Multiplies the rows [from, to) with one matrix.
void RowProducts::multiply(Product& product, const uint8_t* weights, size_t from, size_t to) const {
  const size_t n_weights = extent(product.weights(), 1), stride = product.weights().nb[1];
  const int n_columns = static_cast<int>(extent(product.weights(), 0));
  for (size_t first = from; first < to; first += kTileRows) {
    for (size_t w = 0; w < n_weights; w += kTileWeights) {
      if (!product.is_mine()) continue;
      for (size_t i = first; i < std::min(first + kTileRows, to); ++i) {
        const Row row = row_of(product, i);
        float* output = reinterpret_cast<float*>(row.output);
        for (size_t j = w; j < std::min(w + kTileWeights, n_weights); ++j) {
          product.traits.vec_dot(n_columns, output + j, 0, weights + j * stride, 0, row.activations, 0, 1);
        }
      }
    }
  }
}

}  // namespace corosrv
