// How a context computes, for a while.
#pragma once

#include "llama/handles.h"

namespace corosrv {

// Makes the context compute vectors of all tokens that it decodes, for as long as this object lives.
class VectorMode {
 public:
  VectorMode(llama_context* context, bool is_always_on) : context_(is_always_on ? nullptr : context) {
    if (context_ != nullptr) llama_set_embeddings(context_, true);
  }
  ~VectorMode() {
    if (context_ != nullptr) llama_set_embeddings(context_, false);
  }
  VectorMode(const VectorMode&) = delete;
  VectorMode& operator=(const VectorMode&) = delete;

 private:
  llama_context* const context_;
};

// Lets each row of a batch see all others, for as long as this object lives.
class NonCausalMode {
 public:
  NonCausalMode(llama_context* context, bool is_on) : context_(is_on ? context : nullptr) {
    if (context_ != nullptr) llama_set_causal_attn(context_, false);
  }
  ~NonCausalMode() {
    if (context_ != nullptr) llama_set_causal_attn(context_, true);
  }
  NonCausalMode(const NonCausalMode&) = delete;
  NonCausalMode& operator=(const NonCausalMode&) = delete;

 private:
  llama_context* const context_;
};

}  // namespace corosrv
