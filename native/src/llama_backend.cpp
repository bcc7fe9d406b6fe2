#include "llama_backend.h"

#include <llama.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <future>
#include <limits>
#include <mutex>
#include <stdexcept>

#include "graph_kernels.h"

namespace corosrv {

namespace {

// libllama's last error lines: its own functions return null without a reason.
class NativeLog {
 public:
  static void install() { llama_log_set(&NativeLog::receive, nullptr); }

  static std::string take_errors() {
    std::lock_guard<std::mutex> lock(mutex());
    return std::exchange(errors(), {});
  }

 private:
  static void receive(ggml_log_level level, const char* text, void*) {
    if (level != GGML_LOG_LEVEL_ERROR) return;
    std::lock_guard<std::mutex> lock(mutex());
    if (errors().size() < 1000) errors() += text;
  }
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static std::string& errors() {
    static std::string errors;
    return errors;
  }
};

// The first line of libllama's errors, without the name of the function that wrote it.
std::string last_reason() {
  std::string reason = NativeLog::take_errors();
  reason.resize(std::min(reason.find('\n'), reason.size()));
  const size_t colon = reason.find(": ");
  return colon == std::string::npos ? reason : reason.substr(colon + 2);
}

std::string file_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

// What can be told without libllama, which answers these with a null pointer and its log.
Status check_file(const std::string& path) {
  const std::string name = "'" + file_name(path) + "'";
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status(COROSRV_INVALID, "the model file " + name + " does not exist or cannot be read");
  char magic[4] = {};
  file.read(magic, sizeof magic);
  if (std::string(magic, sizeof magic) != "GGUF") {
    return Status(COROSRV_INVALID, name + " is not a GGUF file (it does not begin with 'GGUF')");
  }
  return Status::ok();
}

// Bytes that the kernel says can still be had, or a very large number where it does not say.
double available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    double kilobytes = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %lf kB", &kilobytes) == 1) return kilobytes * 1024;
  }
  return std::numeric_limits<double>::infinity();
}

class LlamaVocabulary final : public Vocabulary {
 public:
  explicit LlamaVocabulary(const llama_vocab* vocab) : vocab_(vocab) {
    const int32_t n_tokens = llama_vocab_n_tokens(vocab);
    texts_.reserve(static_cast<size_t>(n_tokens));
    special_texts_.reserve(static_cast<size_t>(n_tokens));
    for (Token token = 0; token < n_tokens; ++token) {
      texts_.push_back(piece(token, false));
      special_texts_.push_back(piece(token, true));
      if (llama_vocab_is_eog(vocab, token)) end_tokens_.push_back(token);
    }
  }

  int32_t size() const override { return static_cast<int32_t>(texts_.size()); }
  std::string_view text(Token token) const override { return texts_[static_cast<size_t>(token)]; }
  std::string_view special_text(Token token) const override { return special_texts_[static_cast<size_t>(token)]; }
  bool is_end_of_generation(Token token) const override { return llama_vocab_is_eog(vocab_, token); }
  bool is_control(Token token) const override { return llama_vocab_is_control(vocab_, token); }
  const std::vector<Token>& end_tokens() const override { return end_tokens_; }

  std::vector<Token> tokenize(std::string_view text, bool add_special, bool parse_special) const override {
    const auto size = static_cast<int32_t>(text.size());
    std::vector<Token> tokens(text.size() + 2);
    const int32_t n_tokens = llama_tokenize(vocab_, text.data(), size, tokens.data(),
                                            static_cast<int32_t>(tokens.size()), add_special, parse_special);
    // Never more tokens than bytes and the two special ones; a vocabulary that breaks this gets a second call.
    if (n_tokens < 0) {
      tokens.resize(static_cast<size_t>(-n_tokens));
      llama_tokenize(vocab_, text.data(), size, tokens.data(), -n_tokens, add_special, parse_special);
    } else {
      tokens.resize(static_cast<size_t>(n_tokens));
    }
    return tokens;
  }

 private:
  std::string piece(Token token, bool special) const {
    std::string text(32, '\0');
    const auto capacity = static_cast<int32_t>(text.size());
    int32_t size = llama_token_to_piece(vocab_, token, text.data(), capacity, 0, special);
    if (size < 0) {
      text.resize(static_cast<size_t>(-size));
      size = llama_token_to_piece(vocab_, token, text.data(), -size, 0, special);
    }
    text.resize(static_cast<size_t>(std::max(size, 0)));
    return text;
  }

  const llama_vocab* const vocab_;
  std::vector<std::string> texts_;
  std::vector<std::string> special_texts_;
  std::vector<Token> end_tokens_;
};

// Recurrent memories are no lists of tokens that could be cut and copied.
bool can_copy_memory(const llama_model* model) {
  return !llama_model_is_recurrent(model) && !llama_model_is_hybrid(model);
}

struct FreeModel {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct FreeContext {
  void operator()(llama_context* context) const { llama_free(context); }
};
using Model = std::unique_ptr<llama_model, FreeModel>;
using Context = std::unique_ptr<llama_context, FreeContext>;

// Owner of a llama_batch of a fixed capacity.
class LlamaBatch {
 public:
  explicit LlamaBatch(int32_t capacity) : batch_(llama_batch_init(capacity, 0, 1)) {}
  ~LlamaBatch() { llama_batch_free(batch_); }
  LlamaBatch(const LlamaBatch&) = delete;
  LlamaBatch& operator=(const LlamaBatch&) = delete;

  const llama_batch& fill(const std::vector<Row>& rows) {
    batch_.n_tokens = static_cast<int32_t>(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      batch_.token[i] = rows[i].token;
      batch_.pos[i] = rows[i].position;
      batch_.n_seq_id[i] = 1;
      batch_.seq_id[i][0] = rows[i].slot;
      batch_.logits[i] = rows[i].wants_logits;
    }
    return batch_;
  }

 private:
  llama_batch batch_;
};

ModelInfo describe(const llama_model* model, int32_t context) {
  const llama_vocab* vocab = llama_model_get_vocab(model);
  ModelInfo info;
  info.context = context;
  info.context_train = llama_model_n_ctx_train(model);
  info.n_embd = llama_model_n_embd(model);
  info.vocab_type = llama_vocab_type(vocab);
  info.add_bos = llama_vocab_get_add_bos(vocab);
  info.bos = llama_vocab_bos(vocab);
  info.eos = llama_vocab_eos(vocab);
  info.n_params = llama_model_n_params(model);
  info.size = llama_model_size(model);
  info.ftype = llama_ftype_name(llama_model_ftype(model));
  char description[128] = {};
  llama_model_desc(model, description, sizeof description);
  info.description = description;
  const char* chat_template = llama_model_chat_template(model, nullptr);
  info.chat_template = chat_template == nullptr ? "" : chat_template;
  return info;
}

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

llama_context_params context_params(const corosrv_options& options, int32_t context, GraphKernels* kernels) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(context) * static_cast<uint32_t>(options.slots);
  params.n_seq_max = static_cast<uint32_t>(options.slots);
  params.n_batch = params.n_ubatch = static_cast<uint32_t>(options.batch);
  params.n_outputs_max = static_cast<uint32_t>(options.slots);
  if (options.threads > 0) params.n_threads = params.n_threads_batch = options.threads;
  // One stream per sequence: no attention over the neighbours' cells, and what is not a number in one sequence stays
  // there.
  params.kv_unified = false;
  // For this type of cache libllama has one kernel, whatever the number of rows and tokens; for 16-bit floats it has
  // three, which round differently.
  if (options.deterministic != 0) params.type_k = params.type_v = GGML_TYPE_BF16;
  params.no_perf = true;
  if (kernels != nullptr) {
    params.cb_eval = &GraphKernels::on_node;
    params.cb_eval_user_data = kernels;
  }
  return params;
}

// Bytes of KV cache in 16-bit floats.
double kv_bytes(const llama_model* model, double n_cells) {
  const double head = static_cast<double>(llama_model_n_embd(model)) / llama_model_n_head(model);
  return n_cells * llama_model_n_layer(model) * llama_model_n_head_kv(model) * head * 2 * 2;
}

Status check_memory(const llama_model* model, int32_t slots, int32_t context) {
  const double wanted = kv_bytes(model, static_cast<double>(slots) * context);
  const double available = available_memory();
  if (wanted <= available) return Status::ok();
  char text[256];
  std::snprintf(text, sizeof text,
                "%d slots of %d tokens need %.1f GB of KV cache, and %.1f GB of memory are available: lower "
                "COROSRV_SLOTS or COROSRV_CTX",
                slots, context, wanted / 1e9, available / 1e9);
  return Status(COROSRV_INVALID, text);
}

// Packed weights may take half of what the cache leaves: the other half is everybody else's.
std::unique_ptr<GraphKernels> make_kernels(const corosrv_options& options, const llama_model* model, int32_t context) {
  if (options.kernels == COROSRV_KERNELS_GGML) return nullptr;
  const double left = available_memory() - kv_bytes(model, static_cast<double>(options.slots) * context);
  return GraphKernels::make(static_cast<size_t>(std::clamp(left / 2, 0.0, 1e18)));
}

Status failure(const std::string& what, const std::string& path) {
  const std::string reason = last_reason();
  return Status(COROSRV_INVALID, what + " '" + file_name(path) + "'" + (reason.empty() ? "" : ": " + reason));
}

}  // namespace

std::unique_ptr<Backend> make_llama_backend(const corosrv_options& options, Status& status) {
  const std::string path = options.model == nullptr ? "" : options.model;
  status = check_file(path);
  if (!status.is_ok()) return nullptr;
  NativeLog::install();
  NativeLog::take_errors();

  llama_model_params model_params = llama_model_default_params();
  model_params.use_extra_bufts = options.safe_load == 0;
  Model model(llama_model_load_from_file(path.c_str(), model_params));
  if (!model) {
    status = failure("libllama cannot load", path);
    return nullptr;
  }
  if (!llama_model_has_decoder(model.get()) || llama_model_has_encoder(model.get())) {
    status = Status(COROSRV_INVALID, "'" + file_name(path) + "' is no decoder-only language model");
    return nullptr;
  }
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
