#include "llama_backend.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <limits>
#include <stdexcept>

#include "graph_kernels.h"
#include "llama_context.h"
#include "llama_handles.h"
#include "llama_log.h"
#include "llama_model.h"
#include "llama_vocabulary.h"

namespace corosrv {

namespace {

// Makes the context that a backend is to have in the end. Touching gigabytes of KV cache takes seconds.
using MakeContext = std::function<Context()>;

class LlamaBackend final : public Backend {
 public:
  // `first` may have room for less than `context` tokens in each slot, until start_to_grow() has made one that has.
  LlamaBackend(Model model, std::unique_ptr<GraphKernels> kernels, Context first, int32_t context, int32_t slots,
               int32_t rows)
      : model_(std::move(model)),
        kernels_(std::move(kernels)),
        context_(std::move(first)),
        capacity_(static_cast<int32_t>(llama_n_ctx_seq(context_.get()))),
        slots_(slots),
        memory_(llama_get_memory(context_.get())),
        batch_(rows),
        vocabulary_(llama_model_get_vocab(model_.get())),
        info_(describe(model_.get(), std::max(context, capacity_))),
        has_snapshots_(can_copy_memory(model_.get())) {}

  const Vocabulary& vocabulary() const override { return vocabulary_; }
  const ModelInfo& info() const override { return info_; }

  Status decode(const std::vector<Row>& rows) override {
    if (const Status status = grow(rows); !status.is_ok()) return status;
    const int32_t code = llama_decode(context_.get(), batch_.fill(rows));
    if (code == 0) return Status::ok();
    if (code == 1) return Status(COROSRV_NO_ROOM, "the KV cache has no room for this request");
    const std::string reason = last_reason();
    return Status(COROSRV_INTERNAL, "the model could not compute this step (llama_decode: " + std::to_string(code) +
                                        (reason.empty() ? ")" : ", " + reason + ")"));
  }

  float* logits(size_t row) override { return llama_get_logits_ith(context_.get(), static_cast<int32_t>(row)); }

  void forget(int32_t slot, int32_t position) override {
    // Recurrent memory cannot be cut in the middle: it is then dropped whole.
    if (!llama_memory_seq_rm(memory_, slot, position, -1)) llama_memory_seq_rm(memory_, slot, -1, -1);
  }

  bool has_snapshots() const override { return has_snapshots_; }

  Snapshot save(int32_t slot, size_t limit_bytes) override {
    Snapshot snapshot;
    snapshot.size = llama_state_seq_get_size(context_.get(), slot);
    if (snapshot.size > limit_bytes) return {};
    snapshot.bytes.reset(new uint8_t[snapshot.size]);  // not zeroed: all of it is written
    const size_t n_written = llama_state_seq_get_data(context_.get(), snapshot.bytes.get(), snapshot.size, slot);
    return n_written == snapshot.size ? std::move(snapshot) : Snapshot();
  }

  bool load(int32_t slot, const Snapshot& snapshot, int32_t n_tokens) override {
    if (n_tokens > capacity_ || !read(context_.get(), slot, snapshot)) return false;
    if (llama_memory_seq_rm(memory_, slot, n_tokens, -1)) return true;
    forget(slot, 0);
    return false;
  }

  // Touches the weights, packs those that want it and lets libllama reserve its buffers, so that the first request
  // does not wait for it.
  Status warm_up() {
    const Token token = info_.bos >= 0 ? info_.bos : 0;
    Status status = decode({{token, 0, 0, true}});
    forget(0, 0);
    if (kernels_) {
      info_.own_kernels = kernels_->is_used();
      info_.packed_bytes = kernels_->bytes();
    }
    return status;
  }

  // Makes the full context beside the first one, which serves meanwhile.
  void start_to_grow(MakeContext make_full) {
    if (capacity_ < info_.context) full_ = std::async(std::launch::async, make_in_background, std::move(make_full));
  }

 private:
  static Context make_in_background(const MakeContext& make) {
    // Whoever is served meanwhile goes first.
    const sched_param none{};
    ::sched_setscheduler(::gettid(), SCHED_IDLE, &none);
    return make();
  }

  static bool read(llama_context* context, int32_t slot, const Snapshot& snapshot) {
    if (llama_state_seq_set_data(context, snapshot.bytes.get(), snapshot.size, slot) == snapshot.size) return true;
    llama_memory_seq_rm(llama_get_memory(context), slot, -1, -1);
    return false;
  }

  // Goes over to the full context once it is there, and waits for it where `rows` need it.
  Status grow(const std::vector<Row>& rows) {
    if (full_.valid()) {
      const bool needs_full = needs_more(rows);
      if (!needs_full && full_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return Status::ok();
      if (Context full = full_.get()) move_to(std::move(full));
    }
    if (!needs_more(rows)) return Status::ok();
    return Status(COROSRV_INTERNAL, "the KV cache could not grow beyond " + std::to_string(capacity_) +
                                        " tokens in each slot: too little memory was left");
  }

  bool needs_more(const std::vector<Row>& rows) const {
    return std::any_of(rows.begin(), rows.end(), [this](const Row& row) { return row.position >= capacity_; });
  }

  void move_to(Context full) {
    for (int32_t slot = 0; slot < slots_; ++slot) {
      if (llama_memory_seq_pos_max(memory_, slot) < 0) continue;
      // Both contexts are alike but for their size, so there is no reason for this to fail.
      const Snapshot held = save(slot, std::numeric_limits<size_t>::max());
      if (!held.bytes || !read(full.get(), slot, held)) throw std::runtime_error("the KV cache could not be moved");
    }
    context_ = std::move(full);
    capacity_ = static_cast<int32_t>(llama_n_ctx_seq(context_.get()));
    memory_ = llama_get_memory(context_.get());
  }

  const Model model_;
  const std::unique_ptr<GraphKernels> kernels_;  // null: libllama's alone
  Context context_;
  int32_t capacity_;  // tokens that a slot of context_ holds
  const int32_t slots_;
  llama_memory_t memory_;
  LlamaBatch batch_;
  const LlamaVocabulary vocabulary_;
  ModelInfo info_;  // constant once warm
  const bool has_snapshots_;
  std::future<Context> full_;  // last: it uses the model, and is waited for first
};

// Of each slot: what a server starts with, where the whole KV cache would keep it waiting.
constexpr int32_t kFirstTokens = 256;

}  // namespace

std::unique_ptr<Backend> make_llama_backend(const corosrv_options& options, Status& status) {
  const std::string path = options.model == nullptr ? "" : options.model;
  Model model = load_model(path, options.safe_load != 0, status);
  if (!model) return nullptr;
  const int32_t trained = llama_model_n_ctx_train(model.get());
  const int32_t context = options.context > 0 ? std::min(options.context, trained) : trained;
  status = check_memory(model.get(), options.slots, context);
  if (!status.is_ok()) return nullptr;

  std::unique_ptr<GraphKernels> kernels = make_kernels(options, model.get(), context);
  const auto make_context = [options, raw_model = model.get(), raw_kernels = kernels.get()](int32_t tokens) {
    return Context(llama_init_from_model(raw_model, context_params(options, tokens, raw_kernels)));
  };
  Context first = make_context(can_copy_memory(model.get()) ? std::min(context, kFirstTokens) : context);
  if (!first) {
    status = failure("libllama cannot make a context for", path);
    return nullptr;
  }
  auto backend = std::make_unique<LlamaBackend>(std::move(model), std::move(kernels), std::move(first), context,
                                                options.slots, options.batch);
  status = backend->warm_up();
  if (!status.is_ok()) return nullptr;
  backend->start_to_grow([=] { return make_context(context); });
  return backend;
}

}  // namespace corosrv
