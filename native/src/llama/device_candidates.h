// Has the device of the output layer pick the largest logits of each row.
#pragma once

#include <ggml-backend.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "llama/handles.h"
#include "model/backend.h"

namespace corosrv {

// Logits that are picked of a row: as many as most requests keep, and some in place of those that they penalise.
constexpr int32_t kPickedLogits = 256;

// Adds to each graph of a context what picks the largest logits of its rows, so that they alone cross the bus, and what
// keeps all logits on the device, for whoever needs them after all.
//
// libllama lets a sampler of each sequence add nodes to its graphs, and leaves all logits on the device then. Its own
// samplers would pick row by row; ours picks all rows of a graph at once, and each sampler gets its part of them. A
// batch may take several graphs, whose memory is used again: what is kept has memory of its own. Nothing of it changes
// after the context is made, for libllama would reserve its graphs anew.
//
// Used by the thread that uses the context; outlives it.
class DeviceCandidates {
 public:
  // `n_kept`: rows of one llama_decode whose logits are kept, at most.
  DeviceCandidates(const llama_model* model, int32_t slots, int32_t n_kept);
  ~DeviceCandidates();
  DeviceCandidates(const DeviceCandidates&) = delete;
  DeviceCandidates& operator=(const DeviceCandidates&) = delete;

  // Lets the context that is made with `params` use this; one context at most.
  void attach(llama_context_params& params);
  // Returns whether that context does: its device may lack an operation. It is of no use then.
  bool is_attached() const { return kept_ != nullptr; }

  // Called before each llama_decode.
  void forget_rows();
  // Returns the largest logits of a row of the last llama_decode.
  PickedLogits picked(llama_context* context, int32_t row) const;
  // Returns all logits of a row, copied to where libllama has room for them. `n_before`: rows of its slot with logits
  // before it.
  float* all(llama_context* context, int32_t row, int32_t slot, int32_t n_before) const;

 private:
  // One slot's sampler.
  struct Part {
    DeviceCandidates* owner;
    llama_sampler* chain;
    std::vector<int64_t> rows;    // of the graph that was made last
    std::vector<int64_t> places;  // in kept_, of its rows of the last llama_decode
  };

  static Part& part_of(llama_sampler* sampler);
  bool keep_on(ggml_backend_buffer_type_t type);
  bool can_compute(ggml_backend_dev_t device) const;
  void forget_graph(Part& part);
  void add_nodes(ggml_context* context, ggml_cgraph* graph, ggml_tensor* rows);
  void hand_out(Part& part, ggml_context* context, ggml_cgraph* graph, llama_sampler_data& data);
  void place_rows(Part& part);

  llama_sampler_i calls_{};  // from libllama
  const int64_t n_logits_;
  const int64_t n_kept_;
  std::vector<std::unique_ptr<Part>> parts_;  // by slot
  std::vector<llama_sampler_seq_config> configs_;
  ggml_context* kept_context_ = nullptr;
  ggml_backend_buffer_t kept_buffer_ = nullptr;
  ggml_tensor* kept_ = nullptr;  // rows of logits, and one for rows that nobody asks for
  int64_t n_placed_ = 0;         // rows of this llama_decode
  // Of the graph that was made last; null until its first sampler has its turn.
  ggml_tensor* places_ = nullptr;  // in kept_, of its rows
  ggml_tensor* tokens_ = nullptr;  // that were picked of each row
  ggml_tensor* logits_ = nullptr;  // of these
};

}  // namespace corosrv
