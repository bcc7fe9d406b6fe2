#include "model/synthetic_backend.h"

#include <algorithm>
#include <array>
#include <thread>

namespace corosrv {

namespace {

constexpr std::array<std::string_view, 16> kWords = {
    " the",  " river",  " carries", " a",   " small", " boat", " to",          " the sea",
    ", and", " nobody", " counts",  " its", " waves", ".",     " caf\xC3\xA9", " \xF0\x9F\x8C\x8A"};
constexpr Token kFirstWord = 256;
constexpr Token kEnd = kFirstWord + static_cast<Token>(kWords.size());
constexpr int32_t kTokens = kEnd + 1;
constexpr float kLikely = 20.0f;

class SyntheticVocabulary final : public Vocabulary {
 public:
  SyntheticVocabulary() : end_tokens_{kEnd} {
    for (size_t byte = 0; byte < bytes_.size(); ++byte) bytes_[byte] = static_cast<char>(byte);
  }

  int32_t size() const override { return kTokens; }
  std::string_view text(Token token) const override {
    if (token < kFirstWord) return {&bytes_[static_cast<size_t>(token)], 1};
    return token == kEnd ? std::string_view() : kWords[static_cast<size_t>(token - kFirstWord)];
  }
  std::string_view special_text(Token token) const override { return token == kEnd ? "<|end|>" : text(token); }
  bool is_end_of_generation(Token token) const override { return token == kEnd; }
  bool is_control(Token token) const override { return token == kEnd; }
  const std::vector<Token>& end_tokens() const override { return end_tokens_; }
  std::vector<Token> tokenize(std::string_view text, bool, bool) const override {
    std::vector<Token> tokens;
    tokens.reserve(text.size());
    for (const char byte : text) tokens.push_back(static_cast<uint8_t>(byte));
    return tokens;
  }

 private:
  std::array<char, 256> bytes_;
  const std::vector<Token> end_tokens_;
};

class SyntheticBackend final : public Backend {
 public:
  SyntheticBackend(const SyntheticOptions& synthetic, int32_t context, int32_t slots)
      : synthetic_(synthetic), slots_(static_cast<size_t>(slots)) {
    info_.context = info_.context_train = context;
    info_.eos = kEnd;
    info_.can_shift = true;  // of tokens it keeps nothing but a hash
    info_.ftype = "synthetic";
    info_.description = "synthetic";
    info_.chat_template =
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}";
  }

  const Vocabulary& vocabulary() const override { return vocabulary_; }
  const ModelInfo& info() const override { return info_; }

  Status decode(const std::vector<Row>& rows) override {
    logits_.assign(rows.size() * kTokens, 0.0f);
    int32_t n_prompt = 0;
    int32_t n_decode = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const Row& row = rows[i];
      Slot& slot = slots_[static_cast<size_t>(row.slot)];
      if (!slot.is_live) ++n_live_;
      slot.is_live = true;
      slot.state = slot.state * 31 + static_cast<uint32_t>(row.token) + 7;
      // A row right after the slot's previous logits is a generated token; all others are of a prompt.
      const bool is_decode = slot.n_generated > 0 && row.wants_logits && !row.is_scored;
      ++(is_decode ? n_decode : n_prompt);
      if (row.wants_logits && !row.is_scored) logits_[i * kTokens + static_cast<size_t>(next(slot))] = kLikely;
    }
    pace(n_prompt, n_decode);
    return Status::ok();
  }

  float* logits(size_t row) override { return &logits_[row * kTokens]; }

  void forget(int32_t slot, Extent kept) override {
    if (kept.n_tokens > 0) return;  // the text after a repeated step is made up either way
    Slot& forgotten = slots_[static_cast<size_t>(slot)];
    if (forgotten.is_live) --n_live_;
    forgotten = Slot();
  }

  // Prompts cost what they are told to cost, so there is nothing to save.
  bool has_snapshots() const override { return false; }
  Snapshot save(int32_t, size_t) override { return {}; }
  bool load(int32_t, const Snapshot&, Extent) override { return false; }

 private:
  struct Slot {
    bool is_live = false;
    uint32_t state = 0;  // hash of the tokens so far
    int32_t n_generated = 0;
  };

  Token next(Slot& slot) const {
    if (synthetic_.length > 0 && slot.n_generated >= synthetic_.length) return kEnd;
    ++slot.n_generated;
    return kFirstWord + static_cast<Token>((slot.state >> 8) % kWords.size());
  }

  // A sequence gets its rate when the steps that serve all live ones once take one token's time together.
  void pace(int32_t n_prompt, int32_t n_decode) {
    double wait_s = 0;
    if (synthetic_.prefill_tokens_per_s > 0) wait_s += n_prompt / synthetic_.prefill_tokens_per_s;
    if (synthetic_.tokens_per_s > 0) wait_s += n_decode / (synthetic_.tokens_per_s * std::max(n_live_, 1));
    const auto wait = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(wait_s));
    // Against a schedule and not from now, so that the loop's own time does not lower the rate; one step is made up
    // for at most, so that none is after an idle time.
    const auto now = Clock::now();
    next_step_ = std::clamp(next_step_ + wait, now, now + wait);
    std::this_thread::sleep_until(next_step_);
  }

  const SyntheticOptions synthetic_;
  const SyntheticVocabulary vocabulary_;
  ModelInfo info_;
  std::vector<Slot> slots_;
  int32_t n_live_ = 0;
  std::vector<float> logits_;
  Clock::time_point next_step_ = Clock::now();
};

}  // namespace

std::unique_ptr<Backend> make_synthetic_backend(const SyntheticOptions& synthetic, int32_t context, int32_t slots) {
  return std::make_unique<SyntheticBackend>(synthetic, context, slots);
}

std::unique_ptr<Vocabulary> make_synthetic_vocabulary() { return std::make_unique<SyntheticVocabulary>(); }

}  // namespace corosrv
