#include "llama/device_candidates.h"

#include <ggml-alloc.h>
#include <ggml.h>

#include <algorithm>
#include <stdexcept>

namespace corosrv {

namespace {

// Tensors that add_nodes() makes, and some.
constexpr size_t kFewTensors = 16;

ggml_context* make_tensors() { return ggml_init({kFewTensors * ggml_tensor_overhead(), nullptr, true}); }

struct Picked {
  ggml_tensor* tokens;
  ggml_tensor* logits;
};

// Adds what picks the largest logits of each row.
Picked pick(ggml_context* context, ggml_tensor* rows) {
  ggml_tensor* tokens = ggml_top_k(context, rows, kPickedLogits);
  ggml_tensor* columns = ggml_reshape_3d(context, rows, 1, rows->ne[0], rows->ne[1]);
  return {tokens, ggml_get_rows(context, columns, tokens)};
}

}  // namespace

DeviceCandidates::DeviceCandidates(const llama_model* model, int32_t slots, int32_t n_kept)
    : n_logits_(llama_vocab_n_tokens(llama_model_get_vocab(model))), n_kept_(n_kept) {
  calls_.name = [](const llama_sampler*) { return "candidates"; };
  calls_.apply = [](llama_sampler*, llama_token_data_array*) {};
  calls_.backend_init = [](llama_sampler* sampler, ggml_backend_buffer_type_t type, uint32_t) {
    return part_of(sampler).owner->keep_on(type);
  };
  calls_.backend_reset = [](llama_sampler* sampler) { part_of(sampler).owner->forget_graph(part_of(sampler)); };
  calls_.backend_apply = [](llama_sampler* sampler, ggml_context* context, ggml_cgraph* graph,
                            llama_sampler_data* data) {
    part_of(sampler).owner->hand_out(part_of(sampler), context, graph, *data);
  };
  calls_.backend_set_input = [](llama_sampler* sampler) { part_of(sampler).owner->place_rows(part_of(sampler)); };

  for (int32_t slot = 0; slot < slots; ++slot) {
    llama_sampler* chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    parts_.push_back(std::make_unique<Part>(Part{this, chain, {}, {}}));
    llama_sampler_chain_add(chain, llama_sampler_init(&calls_, parts_.back().get()));
    configs_.push_back({slot, chain});
  }
}

DeviceCandidates::~DeviceCandidates() {
  for (const auto& part : parts_) llama_sampler_free(part->chain);
  ggml_backend_buffer_free(kept_buffer_);
  ggml_free(kept_context_);
}

void DeviceCandidates::attach(llama_context_params& params) {
  params.samplers = configs_.data();
  params.n_samplers = configs_.size();
  params.n_outputs_max_per_seq = 0;  // no more limit than for all: guesses and scored prompts have many of a sequence
}

void DeviceCandidates::forget_rows() {
  n_placed_ = 0;
  for (const auto& part : parts_) part->places.clear();
}

PickedLogits DeviceCandidates::picked(llama_context* context, int32_t row) const {
  const float* logits = llama_get_sampled_logits_ith(context, row);
  return {llama_get_sampled_candidates_ith(context, row), logits,
          logits == nullptr ? 0 : llama_get_sampled_candidates_count_ith(context, row)};
}

float* DeviceCandidates::all(llama_context* context, int32_t row, int32_t slot, int32_t n_before) const {
  float* const logits = llama_get_logits_ith(context, row);  // waits for the device; libllama has put nothing there
  const int64_t place = parts_.at(static_cast<size_t>(slot))->places.at(static_cast<size_t>(n_before));
  if (logits == nullptr || place == n_kept_) throw std::runtime_error("the logits of a row were not kept");
  ggml_backend_tensor_get(kept_, logits, static_cast<size_t>(place) * kept_->nb[1], kept_->nb[1]);
  return logits;
}

DeviceCandidates::Part& DeviceCandidates::part_of(llama_sampler* sampler) { return *static_cast<Part*>(sampler->ctx); }

// Takes memory of the output layer's device; false if it has too little, or lacks an operation.
bool DeviceCandidates::keep_on(ggml_backend_buffer_type_t type) {
  if (kept_ != nullptr) return true;
  if (kept_context_ != nullptr) return false;  // tried before
  kept_context_ = make_tensors();
  ggml_tensor* kept = ggml_new_tensor_2d(kept_context_, GGML_TYPE_F32, n_logits_, n_kept_ + 1);
  const ggml_backend_dev_t device = ggml_backend_buft_get_device(type);
  if (device != nullptr && !can_compute(device)) return false;
  kept_buffer_ = ggml_backend_alloc_ctx_tensors_from_buft(kept_context_, type);
  if (kept_buffer_ == nullptr) return false;
  kept_ = kept;
  return true;
}

bool DeviceCandidates::can_compute(ggml_backend_dev_t device) const {
  ggml_context* context = make_tensors();
  ggml_tensor* rows = ggml_new_tensor_2d(context, GGML_TYPE_F32, n_logits_, 2);
  const auto [tokens, logits] = pick(context, rows);
  ggml_tensor* places = ggml_new_tensor_1d(context, GGML_TYPE_I64, 2);
  ggml_tensor* kept = ggml_set_rows(context, ggml_new_tensor_2d(context, GGML_TYPE_F32, n_logits_, 2), rows, places);
  const bool can_all = ggml_backend_dev_supports_op(device, tokens) && ggml_backend_dev_supports_op(device, logits) &&
                       ggml_backend_dev_supports_op(device, kept);
  ggml_free(context);
  return can_all;
}

void DeviceCandidates::forget_graph(Part& part) {
  part.rows.clear();
  places_ = tokens_ = logits_ = nullptr;
}

// libllama passes rows with one behind them that stands for no token.
void DeviceCandidates::add_nodes(ggml_context* context, ggml_cgraph* graph, ggml_tensor* rows) {
  const auto [tokens, logits] = pick(context, rows);
  tokens_ = tokens;
  logits_ = logits;
  ggml_set_output(tokens_);
  ggml_set_output(logits_);
  if (rows->ne[1] < 2 || rows->ne[0] != n_logits_) return;  // it is empty, or on trial
  places_ = ggml_new_tensor_1d(context, GGML_TYPE_I64, rows->ne[1]);
  ggml_set_input(places_);
  ggml_build_forward_expand(graph, ggml_set_rows(context, kept_, rows, places_));
}

// Called for each row of each slot; for a slot without rows, with the first one of all.
void DeviceCandidates::hand_out(Part& part, ggml_context* context, ggml_cgraph* graph, llama_sampler_data& data) {
  ggml_tensor* const rows = data.logits->view_src != nullptr ? data.logits->view_src : data.logits;
  if (tokens_ == nullptr) add_nodes(context, graph, rows);
  const size_t row = data.logits->view_offs / rows->nb[1];
  part.rows.push_back(static_cast<int64_t>(row));
  data.candidates = ggml_view_1d(context, tokens_, kPickedLogits, row * tokens_->nb[1]);
  data.logits = ggml_view_1d(context, logits_, kPickedLogits, row * logits_->nb[2]);
}

// Called for each slot with rows, before the graph that was made last is computed.
void DeviceCandidates::place_rows(Part& part) {
  const auto place = [this](int64_t row, int64_t where) {
    ggml_backend_tensor_set(places_, &where, static_cast<size_t>(row) * sizeof where, sizeof where);
  };
  for (const int64_t row : part.rows) {
    part.places.push_back(std::min(n_placed_++, n_kept_));
    place(row, part.places.back());
  }
  place(places_->ne[0] - 1, n_kept_);
}

}  // namespace corosrv
