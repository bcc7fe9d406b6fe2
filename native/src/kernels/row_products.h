// Multiplies matrices of any of ggml's formats so that no row of activations depends on its neighbours.
#pragma once

#include <ggml-cpu.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/expert_order.h"
#include "kernels/spin_barrier.h"

namespace corosrv {

// Computes ggml's nodes MUL_MAT and MUL_MAT_ID one dot product at a time.
//
// ggml chooses a routine by the number of rows, and its routines for many rows sum in another order than those for few.
// Here every output is one call of ggml's dot product for a single pair of rows (invariant I9). That is slower for many
// rows, because a weight is loaded into registers again for each of them.
//
// prepare() is called by the thread that calls llama_decode, compute() by ggml's compute threads inside that call.
class RowProducts {
 public:
  // Returns null if this build of ggml does not export its dot products.
  static std::unique_ptr<RowProducts> make();

  // Returns whether the node is a product that compute() can do: its matrices are in host memory and in the layout that
  // ggml documents for their types.
  bool can_compute(const ggml_tensor& node) const;

  // Allocates buffers for a node that can be computed; throws std::bad_alloc. All nodes share them; they never shrink.
  void prepare(const ggml_tensor& node);

  // Computes one thread's share of a node. All `n_threads` threads call it, and wait for each other once.
  void compute(ggml_tensor& node, int thread, int n_threads);

 private:
  using GetTraits = const ggml_type_traits_cpu* (*)(ggml_type type);

  // The node and the thread of one call of compute().
  struct Product;
  // The inputs and the outputs of one row of activations.
  struct Row {
    const uint8_t* activations;
    uint8_t* output;
  };

  explicit RowProducts(GetTraits get_traits) : get_traits_(get_traits) {}
  static GetTraits find_traits();

  bool needs_conversion(const ggml_tensor& node) const;
  size_t converted_row_bytes(const ggml_tensor& node) const;
  void convert(const ggml_tensor& node, int thread, int n_threads);
  Row row_of(const Product& product, size_t row) const;
  void multiply(Product& product, const uint8_t* weights, size_t from, size_t to) const;

  const GetTraits get_traits_;
  std::vector<uint8_t> converted_;  // the node's activations, in the format that its weights are multiplied with
  std::vector<float> floats_;       // a row for each thread, used during the conversion
  ExpertOrder experts_;             // of a MUL_MAT_ID
  SpinBarrier barrier_;
};

}  // namespace corosrv
