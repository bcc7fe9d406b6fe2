// Nodes of a graph that lie between matrix products, as steps of a run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "kernels/elements.h"
#include "kernels/node_run.h"

namespace corosrv {

// Adds sums, products number by number, norms, gates, rotations by position, and the writing of keys and values to
// runs, where their tensors are of floats, with rows of a multiple of kElementStep, and keys and values of 16-bit
// floats.
//
// Rotations by the same positions, those of all layers, share their cosines and sines.
class ElementSteps {
 public:
  explicit ElementSteps(const ElementKernels& kernels) : kernels_(kernels) {}

  // Returns whether the operation is one of these.
  static bool may_add(const ggml_tensor& node) { return add_of(node) != nullptr; }
  // Adds the step of such a node to the run; returns false, with nothing added, if its tensors lie
  // otherwise. Throws std::bad_alloc, after which forget_inputs() is due.
  bool add(NodeRun& run, ggml_tensor* node) { return (this->*add_of(*node))(run, node); }
  // Another graph begins, whose inputs have other values.
  void forget_inputs();

 private:
  // What the angles of a rotation depend on.
  struct Angles {
    const ggml_tensor* positions;
    const ggml_tensor* factors;
    int32_t n_numbers, mode, original_context;
    float base, scale, extrapolation, magnitude, fast, slow;

    bool operator==(const Angles& other) const;
  };
  struct Rotation {
    const Angles angles;
    bool is_made = false;             // by a step of this graph
    std::vector<float> numbers = {};  // for each token all cosines, then all sines
  };

  using Add = bool (ElementSteps::*)(NodeRun& run, ggml_tensor* node);

  static Add add_of(const ggml_tensor& node);  // null for other operations
  static Angles angles_of(const ggml_tensor& node);

  bool add_sum_or_product(NodeRun& run, ggml_tensor* node);
  bool add_biases(NodeRun& run, ggml_tensor* node);
  bool add_norm(NodeRun& run, ggml_tensor* node);
  bool add_gate(NodeRun& run, ggml_tensor* node);
  bool add_rotation(NodeRun& run, ggml_tensor* node);
  bool add_writing(NodeRun& run, ggml_tensor* node);
  Rotation& rotation_of(const Angles& angles);

  // Step::Compute; the context is the kernels, or the Rotation.
  template <auto kRoutine>
  static void combine(const Step& step, int thread, int n_threads);
  static void combine_by_expert(const Step& step, int thread, int n_threads);
  static void scale(const Step& step, int thread, int n_threads);
  static void normalize(const Step& step, int thread, int n_threads);
  template <auto kRoutine>
  static void combine_columns(const Step& step, int thread, int n_threads);
  static void make_angles(const Step& step, int thread, int n_threads);
  template <auto kRoutine>
  static void rotate(const Step& step, int thread, int n_threads);
  static void write(const Step& step, int thread, int n_threads);

  const ElementKernels& kernels_;
  std::deque<Rotation> rotations_;  // of all graphs so far: few, because graphs hardly differ in them
};

}  // namespace corosrv
