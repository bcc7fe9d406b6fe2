// The C API of vocabularies: an engine's, and those that are loaded without the weights.
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/check.h"
#include "api/handles.h"
#ifndef COROSRV_WITHOUT_LLAMA
#include "llama/backend.h"
#endif
#include "model/synthetic_backend.h"

using namespace corosrv;

namespace {

std::unique_ptr<Vocabulary> load(const corosrv_options& options, Status& status) {
  if (options.synthetic != nullptr) return make_synthetic_vocabulary();
#ifdef COROSRV_WITHOUT_LLAMA
  status = invalid("this build has no libllama");
  return nullptr;
#else
  return make_llama_vocabulary(options.model == nullptr ? "" : options.model, status);
#endif
}

// What stands behind the handle, or null and the reason why there is nothing.
const Vocabulary* vocabulary_of(corosrv_vocabulary* vocabulary, Status& status) {
  if (!vocabulary->fork_guard.is_same_process()) {
    status = forked();
    return nullptr;
  }
  if (vocabulary->own) return vocabulary->own.get();
  const Backend* backend = ready_backend(vocabulary->engine, status);
  return backend == nullptr ? nullptr : &backend->vocabulary();
}

// The same, or null where it has no such token.
const Vocabulary* vocabulary_with(corosrv_vocabulary* vocabulary, Token token) {
  Status status = Status::ok();
  const Vocabulary* found = vocabulary_of(vocabulary, status);
  return found != nullptr && found->has(token) ? found : nullptr;
}

}  // namespace

int corosrv_engine_vocabulary(corosrv_engine* engine, corosrv_vocabulary** vocabulary) {
  Status status = Status::ok();
  if (ready_backend(engine, status) != nullptr) *vocabulary = &engine->vocabulary;
  return to_c(status.code());
}

int corosrv_vocabulary_open(const corosrv_options* options, corosrv_vocabulary** vocabulary, char* message,
                            size_t message_size) {
  return guarded(message, message_size, [&] {
    Status status = Status::ok();
    auto opened = std::make_unique<corosrv_vocabulary>();
    opened->own = load(*options, status);
    if (opened->own) *vocabulary = opened.release();
    return status;
  });
}

void corosrv_vocabulary_close(corosrv_vocabulary* vocabulary) {
  // In a child the locks of libllama, and of the memory, may be held for ever.
  if (vocabulary != nullptr && vocabulary->fork_guard.is_same_process()) delete vocabulary;
}

int corosrv_vocabulary_size(corosrv_vocabulary* vocabulary, int32_t* n_tokens) {
  Status status = Status::ok();
  const Vocabulary* found = vocabulary_of(vocabulary, status);
  if (found != nullptr) *n_tokens = found->size();
  return to_c(status.code());
}

int corosrv_tokenize(corosrv_vocabulary* vocabulary, const char* text, size_t text_size, int add_special,
                     int parse_special, int32_t* tokens, size_t capacity, size_t* n_tokens) {
  return guarded(nullptr, 0, [&] {
    Status status = Status::ok();
    const Vocabulary* known = vocabulary_of(vocabulary, status);
    if (known == nullptr) return status;
    const std::vector<Token> found = known->tokenize({text, text_size}, add_special != 0, parse_special != 0);
    *n_tokens = found.size();
    std::copy_n(found.begin(), std::min(found.size(), capacity), tokens);
    return Status::ok();
  });
}

int corosrv_token_text(corosrv_vocabulary* vocabulary, int32_t token, int special, corosrv_text* text) {
  Status status = Status::ok();
  const Vocabulary* known = vocabulary_of(vocabulary, status);
  if (known == nullptr) return to_c(status.code());
  if (!known->has(token)) return COROSRV_INVALID;
  const std::string_view found = special != 0 ? known->special_text(token) : known->text(token);
  *text = {found.data(), found.size()};
  return COROSRV_OK;
}

int corosrv_token_is_control(corosrv_vocabulary* vocabulary, int32_t token) {
  const Vocabulary* found = vocabulary_with(vocabulary, token);
  return found != nullptr && found->is_control(token) ? 1 : 0;
}

int corosrv_token_is_end(corosrv_vocabulary* vocabulary, int32_t token) {
  const Vocabulary* found = vocabulary_with(vocabulary, token);
  return found != nullptr && found->is_end_of_generation(token) ? 1 : 0;
}

int corosrv_show_tokens(corosrv_vocabulary* vocabulary, const int32_t* tokens, size_t n_tokens, char* message,
                        size_t message_size) {
  return guarded(message, message_size, [&] {
    Status status = Status::ok();
    const Vocabulary* known = vocabulary_of(vocabulary, status);
    if (known == nullptr) return status;
    std::vector<Token> shown(tokens, tokens + n_tokens);
    if (!std::all_of(shown.begin(), shown.end(), [&](Token token) { return known->has(token); })) {
      return invalid("a token that is to be shown is none of the model's");
    }
    if (!vocabulary->own) return vocabulary->engine->engine->show(shown);
    vocabulary->own->show(shown);
    return Status::ok();
  });
}
