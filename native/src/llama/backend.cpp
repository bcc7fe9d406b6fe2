#include "llama/backend.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <stdexcept>

#include "base/thread_annotations.h"
#include "kernels/graph_kernels.h"
#include "llama/context.h"
#include "llama/handles.h"
#include "llama/model.h"
#include "llama/modes.h"
#include "llama/statuses.h"
#include "llama/vocabulary.h"

namespace corosrv {

namespace {

// Tokens with which it is tried whether a context can be shifted.
constexpr int32_t kTriedRows = 16;

class LlamaBackend final : public Backend {
 public:
  LlamaBackend(Model model, std::unique_ptr<GraphKernels> kernels, Context context, ModelInfo info,
               std::vector<llama_adapter_lora*> adapters, const ModelOptions& options, int32_t rows)
      : model_(std::move(model)),
        adapters_(std::move(adapters)),
        kernels_(std::move(kernels)),
        context_(std::move(context)),
        slots_(options.slots),
        is_deterministic_(options.is_deterministic),
        shifts_context_(options.shifts_context),
        memory_(llama_get_memory(context_.get())),
        n_rows_(rows),
        batch_(rows),
        vocabulary_(llama_model_get_vocab(model_.get())),
        info_(std::move(info)),
        has_snapshots_(memory_ != nullptr && can_copy_memory(model_.get())) {}

  const Vocabulary& vocabulary() const override { return vocabulary_; }
  void show(const std::vector<Token>& tokens) override { vocabulary_.show(tokens); }
  const ModelInfo& info() const override { return info_; }

  void use(const Adapters& scales) override {
    if (scales == used_) return;
    used_ = scales;
    std::vector<llama_adapter_lora*> adapters = adapters_;
    llama_set_adapters_lora(context_.get(), adapters.data(), used_.size(), used_.data());
  }

  void use_threads(int32_t threads) override { llama_set_n_threads(context_.get(), threads, threads); }

  Status decode(const std::vector<Row>& rows) override {
    if (context_.candidates) note_rows(rows);
    if (rows.front().embedding == nullptr) return run(batch_.fill(rows));
    if (!row_batch_) row_batch_.emplace(n_rows_, info_.row_width, info_.is_mrope);
    const NonCausalMode mode(context_.get(), rows.front().is_non_causal);
    return run(row_batch_->fill(rows));
  }

  Status embed(const std::vector<Row>& rows) override {
    const VectorMode mode(context_.get(), info_.reads_whole);
    vectors_.resize(rows.size() * vector_size());
    for (size_t first = 0, n_rows; first < rows.size(); first += n_rows) {
      n_rows = piece_size(rows, first);
      const Status status = run(batch_.fill(&rows[first], n_rows));
      if (!status.is_ok()) return status;
      for (size_t i = 0; i < n_rows; ++i) keep_vector(first + i, static_cast<int32_t>(i), rows[first + i].slot);
    }
    return Status::ok();
  }

  const float* vector(size_t row) override { return &vectors_[row * vector_size()]; }

  void wait() override { llama_synchronize(context_.get()); }

  float* logits(size_t row) override {
    const auto index = static_cast<int32_t>(row);
    if (!context_.candidates) return llama_get_logits_ith(context_.get(), index);
    const MutexLock lock(fetching_);
    const auto [slot, n_before] = rows_with_logits_.at(row);
    return context_.candidates->all(context_.get(), index, slot, n_before);
  }

  PickedLogits picked(size_t row) override {
    if (!context_.candidates) return {};
    return context_.candidates->picked(context_.get(), static_cast<int32_t>(row));
  }

  void forget(int32_t slot, Extent kept) override {
    if (memory_ == nullptr) return;
    // Recurrent memory cannot be cut in the middle: all of it is dropped then.
    if (!llama_memory_seq_rm(memory_, slot, kept.last_position + 1, -1)) llama_memory_seq_rm(memory_, slot, -1, -1);
  }

  void give_back(int32_t slot) override {
    if (context_.pages) context_.pages->give_back(slot);
  }

  // libllama rotates the keys that have moved when it decodes next. Each cell belongs to one slot, also of a cache that
  // all slots share: nothing is copied by llama_memory_seq_cp(), whose cells would move for all of their sequences.
  void shift(int32_t slot, Cut cut) override {
    const int32_t behind = cut.n_kept + cut.n_discarded;
    llama_memory_seq_rm(memory_, slot, cut.n_kept, behind);
    llama_memory_seq_add(memory_, slot, behind, -1, -cut.n_discarded);
  }

  // Leaves nothing of what a slot holds: llama_memory_seq_rm() leaves positions that there cannot be, and the numbers
  // themselves, of which those that are none spoil what comes after them, masked or not. The other slots' content is
  // taken out meanwhile.
  void wipe(int32_t slot) override {
    if (!has_snapshots_) return forget(slot, {});  // such a state begins anew with each sequence
    std::vector<Snapshot> held(static_cast<size_t>(slots_));
    for (int32_t other = 0; other < slots_; ++other) {
      const bool is_kept = other != slot && llama_memory_seq_pos_max(memory_, other) >= 0;
      if (is_kept) held[static_cast<size_t>(other)] = save(other, std::numeric_limits<size_t>::max());
    }
    llama_memory_clear(memory_, true);
    if (context_.pages) context_.pages->give_back_all();
    for (int32_t other = 0; other < slots_; ++other) {
      const Snapshot& snapshot = held[static_cast<size_t>(other)];
      if (snapshot.bytes && !read(other, snapshot)) {
        throw std::runtime_error("the KV cache could not be put back");
      }
    }
  }

  bool has_snapshots() const override { return has_snapshots_; }

  // llama_state_seq_get_data() leaves out what the next token does not see, so a slot that was loaded, or taken out and
  // put back, may lack its first positions. What is there lies in other cells than it did, so that numbers are added in
  // another order: of use only where the same bits are not promised.
  bool can_resume(int32_t slot, Extent kept) const override {
    const int32_t next = kept.last_position + 1;
    const int32_t first_seen = info_.resumes_in_window ? std::max(0, next - info_.window + 1) : 0;
    const int32_t first = llama_memory_seq_pos_min(memory_, slot);
    return first >= 0 && first <= first_seen && llama_memory_seq_pos_max(memory_, slot) >= kept.last_position;
  }

  Snapshot save(int32_t slot, size_t limit_bytes) override {
    Snapshot snapshot;
    snapshot.size = llama_state_seq_get_size(context_.get(), slot);
    if (snapshot.size > limit_bytes) return {};
    snapshot.bytes.reset(new uint8_t[snapshot.size]);  // not zeroed: all of it is written
    const size_t n_written = llama_state_seq_get_data(context_.get(), snapshot.bytes.get(), snapshot.size, slot);
    return n_written == snapshot.size ? std::move(snapshot) : Snapshot();
  }

  bool load(int32_t slot, const Snapshot& snapshot, Extent wanted) override {
    // A snapshot from a file may hold anything.
    const int32_t last = wanted.last_position;
    const bool is_complete = read(slot, snapshot) && llama_memory_seq_rm(memory_, slot, last + 1, -1) &&
                             can_resume(slot, wanted) && llama_memory_seq_pos_max(memory_, slot) == last;
    if (!is_complete) wipe(slot);
    return is_complete;
  }

  // Decodes a token, so that the first request does not wait until weights are read and packed and buffers are
  // reserved.
  Status warm_up() {
    const Token token = info_.bos >= 0 ? info_.bos : 0;
    const std::vector<Row> row{{token, 0, 0, true}};
    Status status = info_.can_generate ? decode(row) : embed(row);
    if (status.is_ok() && is_deterministic_ && info_.can_generate) status = decode(mixed_batch(token));
    if (status.is_ok() && shifts_context_ && info_.can_generate) status = try_shift();
    for (int32_t slot = 0; slot < slots_; ++slot) forget(slot, {});
    if (context_.pages) context_.pages->give_back_all();
    info_.picks = context_.candidates != nullptr;
    if (kernels_) {
      if (!kernels_->violation().empty()) return broken_promise(StatusCode::kInvalid, kernels_->violation());
      info_.own_kernels = kernels_->is_used();
      info_.packed_bytes = kernels_->bytes();
    }
    return status;
  }

 private:
  bool read(int32_t slot, const Snapshot& snapshot) {
    return llama_state_seq_set_data(context_.get(), snapshot.bytes.get(), snapshot.size, slot) == snapshot.size;
  }

  Status run(const llama_batch& batch) {
    if (kernels_) kernels_->forget_graph();
    if (context_.candidates) context_.candidates->forget_rows();
    const int32_t code = llama_decode(context_.get(), batch);
    if (code != 0 || !kernels_ || kernels_->violation().empty()) return to_status(code);
    return broken_promise(StatusCode::kInternal, kernels_->violation());
  }

  // Notes which rows have logits, so that these can be found.
  void note_rows(const std::vector<Row>& rows) {
    std::vector<int32_t> n_before(static_cast<size_t>(slots_), 0);
    rows_with_logits_.clear();
    for (const Row& row : rows) {
      int32_t& n_of_slot = n_before[static_cast<size_t>(row.slot)];
      rows_with_logits_.push_back({row.slot, n_of_slot});
      if (row.wants_logits) ++n_of_slot;
    }
  }

  // Finds out whether a shift changes nothing but the keys that move: libllama rotates those of all slots, most of them
  // by nothing. Where it scales them as well, or has quantised them, each shift would damage what other slots hold.
  Status try_shift() {
    if (!has_snapshots_ || !llama_memory_can_shift(memory_)) return no_shift("its memory cannot move tokens");
    for (int32_t slot = 0; slot < slots_; ++slot) forget(slot, {});
    std::vector<Row> rows;
    for (int32_t i = 0; i < std::min(n_rows_, kTriedRows); ++i) rows.push_back({i % vocabulary_.size(), i, 0, false});
    rows.back().wants_logits = true;
    if (const Status status = decode(rows); !status.is_ok()) return status;
    const Snapshot before = save(0, std::numeric_limits<size_t>::max());
    llama_memory_seq_add(memory_, 0, 0, -1, 1);
    llama_memory_seq_add(memory_, 0, 0, -1, -1);
    const auto n_tokens = static_cast<int32_t>(rows.size());
    if (const Status status = decode({{0, n_tokens, 0, true}}); !status.is_ok()) return status;
    forget(0, {n_tokens, n_tokens - 1});
    const Snapshot after = save(0, std::numeric_limits<size_t>::max());
    const bool is_same = before.bytes && before.size == after.size &&
                         std::memcmp(before.bytes.get(), after.bytes.get(), before.size) == 0;
    if (!is_same)
      return no_shift(
          "moving the tokens of one slot would change those of others, as keys that are quantised or scaled do");
    info_.can_shift = true;
    return Status::ok();
  }

  // Returns rows of two slots, one of which reads several tokens: their graph may have operations that the graph of a
  // single row lacks.
  std::vector<Row> mixed_batch(Token token) const {
    std::vector<Row> rows{{token, 1, 0, true}, {token, 2, 0, true}, {token, 3, 0, true}};
    if (slots_ > 1) rows.push_back({token, 0, 1, true});
    return rows;
  }

  size_t vector_size() const { return info_.pooling == Pooling::kRank ? 1 : static_cast<size_t>(info_.n_vector); }

  // Returns how many of the rows from `first` on are computed together. A model whose tokens see all others needs a
  // sequence in one piece. With a KV cache, libllama splits a batch where sequences differ in length; without a cache
  // it does not. In deterministic mode each sequence is computed alone.
  size_t piece_size(const std::vector<Row>& rows, size_t first) const {
    const size_t n_left = rows.size() - first;
    if (!info_.reads_whole) return std::min(n_left, static_cast<size_t>(kVectorRows));
    if (memory_ == nullptr && !is_deterministic_) return n_left;
    const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = std::find_if(begin, rows.end(), [&](const Row& row) { return row.slot != begin->slot; });
    return static_cast<size_t>(end - begin);
  }

  void keep_vector(size_t row, int32_t row_of_batch, int32_t slot) {
    const float* numbers = info_.pooling == Pooling::kRank ? llama_get_embeddings_seq(context_.get(), slot)
                                                           : llama_get_embeddings_ith(context_.get(), row_of_batch);
    if (numbers == nullptr) throw std::runtime_error("libllama made no vector for a token");
    std::copy_n(numbers, vector_size(), &vectors_[row * vector_size()]);
  }

  struct RowOfSlot {
    int32_t slot;
    int32_t n_before;  // rows of the slot with logits
  };

  const Model model_;
  const std::vector<llama_adapter_lora*> adapters_;  // the model frees them
  const std::unique_ptr<GraphKernels> kernels_;      // null: libllama computes everything
  Context context_;
  const int32_t slots_;
  const bool is_deterministic_;
  const bool shifts_context_;
  llama_memory_t memory_;
  const int32_t n_rows_;  // of a step, at most
  LlamaBatch batch_;
  std::optional<LlamaBatch> row_batch_;  // made when a prompt first has embedding rows
  LlamaVocabulary vocabulary_;           // constant from the first task on
  ModelInfo info_;                       // constant once warm
  const bool has_snapshots_;
  Adapters used_;                            // set in context_
  std::vector<RowOfSlot> rows_with_logits_;  // of the last decode(), where a device keeps the logits
  Mutex fetching_;                           // sequences that draw side by side fetch one after the other
  std::vector<float> vectors_;               // of the last embed()
};

}  // namespace

std::unique_ptr<Vocabulary> make_llama_vocabulary(const std::string& path, Status& status) {
  Model model = load_vocabulary(path, status);
  return model ? std::make_unique<LlamaVocabulary>(std::move(model)) : nullptr;
}

std::unique_ptr<Backend> make_llama_backend(const ModelOptions& options, LoadWatch& load, Status& status) {
  const bool may_repack = !options.is_safe && !options.is_deterministic;
  const bool has_own_products = products_of(options.kernels) != nullptr && !has_amx();
  Model model = load_model(options.path, options.placement, may_repack, has_own_products, load, status);
  if (!model) return nullptr;
  const int32_t trained = llama_model_n_ctx_train(model.get());
  const int32_t most = options.placement.stretches_context() ? std::numeric_limits<int32_t>::max() : trained;
  const int32_t context = options.context > 0 ? std::min(options.context, most) : trained;  // of each slot
  std::vector<llama_adapter_lora*> loaded = load_adapters(model.get(), options.adapters, status);
  if (!status.is_ok()) return nullptr;
  ContextPurpose purpose{context};
  status = find_pooling(model.get(), options.path, options.pooling, purpose.pooling);
  if (!status.is_ok()) return nullptr;

  std::unique_ptr<GraphKernels> kernels = make_kernels(options, model.get(), options.is_deterministic, load);
  purpose.kernels = kernels.get();
  Context made = make_context(model.get(), options, purpose);
  // libllama reports this of a context, not of a model.
  if (made && !llama_get_causal_attn(made.get())) {
    purpose.reads_whole = true;
    // Such sequences come alone where neighbours must not matter, and then any kernel will do.
    made = {};
    kernels = make_kernels(options, model.get(), false, load);
    purpose.kernels = kernels.get();
    made = make_context(model.get(), options, purpose);
  }
  if (!made) {
    status = failure("libllama cannot make a context for", options.path);
    return nullptr;
  }

  ModelInfo info =
      describe(model.get(), purpose.reads_whole ? context : static_cast<int32_t>(llama_n_ctx_seq(made.get())));
  if (shares_context(options, purpose)) {
    const int64_t n_cells = int64_t{context} * options.slots;
    info.shared_cells = static_cast<int32_t>(std::min<int64_t>(n_cells, std::numeric_limits<int32_t>::max()));
    info.context = std::min(info.shared_cells, most);
  }
  info.n_adapters = static_cast<int32_t>(loaded.size());
  info.resumes_in_window = info.window > 0 && !options.is_deterministic;
  info.pooling = purpose.pooling;
  info.reads_whole = purpose.reads_whole;
  info.can_generate = !purpose.reads_whole;
  // Nobody watches what devices compute. A processor that is to pick candidates like one is treated like one.
  info.computes_aside = made.pages == nullptr || options.candidates == CandidateSource::kDevice;
  if (!info.can_generate) info.row_width = 0;
  auto backend = std::make_unique<LlamaBackend>(std::move(model), std::move(kernels), std::move(made), std::move(info),
                                                std::move(loaded), options, rows_of_step(options, purpose));
  status = backend->warm_up();
  return status.is_ok() ? std::move(backend) : nullptr;
}

}  // namespace corosrv
