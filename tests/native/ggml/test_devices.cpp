// Graphs of which the processor computes a part and another device the rest.
#include <ggml-backend.h>

#include "check.h"
#include "graphs.h"
#include "kernels/graph_kernels.h"
#include "kernels/kernel_test.h"
#include "kernels/packed_matrix.h"
#include "other_device.h"

namespace corosrv {
namespace {

// Three layers, one after the other, whose weights are the processor's, the device's and the processor's again.
struct SplitModel {
  explicit SplitModel(Machine& machine)
      : here(machine.backend(), GGML_TYPE_Q4_1, {kColumns, 32}),
        there(machine.device() != nullptr ? machine.device() : machine.backend(), GGML_TYPE_Q4_1, {kColumns}) {}

  Tensors operator()(ggml_context* context, ggml_tensor* input) const {
    ggml_tensor* first = ggml_mul_mat(context, here[0], ggml_scale(context, input, 0.5f));
    ggml_tensor* second = ggml_mul_mat(context, there[0], ggml_scale(context, first, 0.1f));
    return {first, second, ggml_mul_mat(context, here[1], ggml_scale(context, second, 0.1f))};
  }

  const Weights here, there;
};

KERNEL_TEST(
    best_products() != nullptr,
    "products on another device are left to it, those of the processor are replaced, and all are what ggml makes") {
  GraphKernels kernels(kFaster);
  Machine ours(&kernels, other_device()), theirs(nullptr);
  const SplitModel split(ours), whole(theirs);

  for (const int64_t n_rows : {1, 33, 5}) {
    const size_t n_before = n_computed_elsewhere();
    Graph graph(ours, n_rows, std::cref(split)), reference(theirs, n_rows, std::cref(whole));
    for (unsigned seed = 1; seed <= 2; ++seed) {  // the second time with the nodes that are replaced already
      const Values input = input_of(n_rows, seed);
      CHECK(largest_difference(graph.compute(input), reference.compute(input)) < 0.1f);
    }
    CHECK_EQ(graph.n_ours(), 2u);
    CHECK(n_computed_elsewhere() >= n_before + 2);
  }
}

// Returns what becomes of a product with a weight whose result lies in memory of this type.
ggml_op op_in(ggml_backend_buffer_type_t type, GraphKernels& kernels, ggml_tensor* weight) {
  const Context context(ggml_init({8 * ggml_tensor_overhead(), nullptr, true}));
  ggml_tensor* input = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, kColumns, 2);
  ggml_tensor* product = ggml_mul_mat(context.get(), weight, input);
  ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(type, 4096);
  product->buffer = buffer;
  product->flags |= GGML_TENSOR_FLAG_COMPUTE;
  kernels.forget_graph();
  GraphKernels::on_node(product, true, &kernels);
  const ggml_op op = product->op;
  ggml_backend_buffer_free(buffer);
  return op;
}

TEST("what lies in a device's memory is left to it, though the processor can read it") {
  Machine bare(nullptr);
  const Weights weights(bare, GGML_TYPE_Q4_1, {16});
  GraphKernels kernels(kFaster);

  CHECK_EQ(op_in(other_memory().own, kernels, weights[0]), GGML_OP_MUL_MAT);
  CHECK_EQ(op_in(other_memory().visible, kernels, weights[0]), GGML_OP_MUL_MAT);
  CHECK(!kernels.is_used());
  CHECK_EQ(kernels.bytes(), size_t{0});
}

KERNEL_TEST(best_products() != nullptr,
            "what lies in the processor's memory, or in what a device lends it, is replaced") {
  Machine bare(nullptr);
  const Weights weights(bare, GGML_TYPE_Q4_1, {16});
  GraphKernels kernels(kFaster);

  CHECK_EQ(op_in(ggml_backend_cpu_buffer_type(), kernels, weights[0]), GGML_OP_CUSTOM);
  CHECK_EQ(op_in(other_memory().lent, kernels, weights[0]), GGML_OP_CUSTOM);
}

}  // namespace
}  // namespace corosrv
