// A model that says what a test wrote.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "byte_vocabulary.h"
#include "gate.h"
#include "model/backend.h"
#include "model/candidate.h"
#include "model/embedded_rows.h"

namespace corosrv {

// A model whose sequences are told apart by the first token of their prompt, their *name*. What comes next is the
// name's script, then the end token; without a script it is made up from all tokens of the sequence, so that a lost or
// foreign token shows in the text. Notes as a fault whatever breaks the contract of Backend.
class ScriptedBackend final : public Backend {
 public:
  using Rows = std::vector<Row>;

  static constexpr int32_t kVectorSize = 2;

  explicit ScriptedBackend(int32_t context = 4096, std::vector<std::string> words = {}) : vocabulary_(words) {
    info_.context = info_.context_train = context;
    info_.eos = ByteVocabulary::kEnd;
  }

  // Behaviour, to be set before the loop starts. `before_decode` may block, throw or fail; `spoil` may change logits;
  // `on_forget` and `on_info` may throw; the loop asks for the info when it takes a task up.
  std::map<Token, std::string> scripts;
  std::function<Status(const ScriptedBackend&, const Rows&)> before_decode;
  std::function<void(Token name, int32_t position, float* logits, size_t size)> spoil;
  std::function<void(int32_t slot)> on_forget;
  std::function<void()> on_info;
  std::function<void()> on_wait;
  bool can_save = true;
  bool keeps_batches = true;  // batches(), adapters() and names_since() tell of all
  size_t n_picked = 0;        // largest logits of each row that a device picks; 0: logits() has all at once
  size_t shared_cells = 0;    // tokens of all slots together, at most; 0: any number
  bool fails_to_load = false, fails_to_save = false;
  std::atomic<int> n_saves{0};
  std::atomic<int> n_wiped{0};
  std::atomic<int> n_shifts{0};
  std::atomic<int> n_threads{0};  // that the loop asked for; 0: it has not yet
  Gate gate;                      // every decode() passes it

  // Any thread.
  std::vector<Adapters> adapters() const {  // of each batch
    std::lock_guard<std::mutex> lock(mutex_);
    return adapters_;
  }
  std::vector<Rows> batches() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return batches_;
  }
  std::vector<std::string> faults() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return faults_;
  }
  // Slots whose memory was given back, in order.
  std::vector<int32_t> given_back() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return given_back_;
  }
  // Names of the sequences of whose rows all logits were asked for, where a device picks the largest.
  std::vector<Token> fetched() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return fetched_;
  }
  // What was loaded of snapshots.
  std::vector<Extent> loads() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return loads_;
  }
  // What slots were cut to that kept something.
  std::vector<Extent> cuts() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return cuts_;
  }
  // Names in the batches from `first` on.
  std::vector<Token> names_since(size_t first) const {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Token> names;
    for (size_t i = first; i < names_.size(); ++i) names.insert(names.end(), names_[i].begin(), names_[i].end());
    return names;
  }

  // Decode thread.
  Token name(const Row& row) const {
    if (row.position == 0) return row.token;
    const auto held = held_.find(row.slot);
    return held == held_.end() || held->second.empty() ? -1 : held->second[0];
  }
  bool has(const Rows& rows, Token wanted) const {
    for (const Row& row : rows) {
      if (name(row) == wanted) return true;
    }
    return false;
  }

  // What info() says; to be changed before it is asked.
  ModelInfo& changeable_info() { return info_; }

  const Vocabulary& vocabulary() const override { return vocabulary_; }
  const ModelInfo& info() const override {
    if (on_info) on_info();
    return info_;
  }

  void use(const Adapters& adapters) override { used_ = adapters; }
  void use_threads(int32_t threads) override { n_threads = threads; }

  Status decode(const Rows& rows) override {
    note(rows);
    check_kind(rows);
    gate.pass();
    shifted_ = -1;
    is_waited_for_ = !info_.computes_aside;
    const Status status = before_decode ? judge(rows) : Status::ok();
    if (!status.is_ok()) return status;
    const auto size = static_cast<size_t>(vocabulary_.size());
    logits_.assign(rows.size() * size, 0.0f);
    for (size_t i = 0; i < rows.size(); ++i) {
      hold(rows[i]);
      if (rows[i].wants_logits) fill(rows[i], &logits_[i * size], size);
    }
    return Status::ok();
  }

  void wait() override {
    if (on_wait) on_wait();
    is_waited_for_ = true;
  }

  float* logits(size_t row) override {
    if (!is_waited_for_) fault("logits were read before the device had computed them");
    if (n_picked > 0) note_fetched(row);
    return &logits_[row * static_cast<size_t>(vocabulary_.size())];
  }

  PickedLogits picked(size_t row) override {
    if (!is_waited_for_) fault("logits were read before the device had computed them");
    if (n_picked == 0) return {};
    const auto size = static_cast<size_t>(vocabulary_.size());
    std::vector<Candidate> picked;
    for (size_t i = 0; i < size; ++i) picked.push_back({static_cast<Token>(i), logits_[row * size + i]});
    std::sort(picked.begin(), picked.end(), is_likelier);
    std::vector<Token>& tokens = picked_tokens_[row];
    std::vector<float>& logits = picked_logits_[row];
    tokens.clear();
    logits.clear();
    for (size_t i = n_picked; i-- > 0;) {
      tokens.push_back(picked[i].token);
      logits.push_back(picked[i].logit);
    }
    return {tokens.data(), logits.data(), n_picked};
  }

  // A token's vector is its number and its position.
  Status embed(const Rows& rows) override {
    note(rows);
    gate.pass();
    const Status status = before_decode ? judge(rows) : Status::ok();
    if (!status.is_ok()) return status;
    vectors_.clear();
    for (const Row& row : rows) {
      hold(row);
      vectors_.insert(vectors_.end(), {static_cast<float>(row.token), static_cast<float>(row.position)});
    }
    return Status::ok();
  }

  const float* vector(size_t row) override { return &vectors_[row * kVectorSize]; }

  void forget(int32_t slot, Extent kept) override {
    if (on_forget) on_forget(slot);
    if (kept.n_tokens == 0) {
      prompt_end_.erase(slot);
    } else {
      note_extent(cuts_, kept);
    }
    auto& held = held_[slot];
    if (held.size() > static_cast<size_t>(kept.n_tokens)) held.resize(static_cast<size_t>(kept.n_tokens));
    if (held.empty()) n_gone_.erase(slot);
  }

  void shift(int32_t slot, Cut cut) override {
    std::vector<Token>& held = held_[slot];
    if (cut.n_kept + cut.n_discarded >= static_cast<int32_t>(held.size())) fault("a shift leaves nothing behind it");
    held.erase(held.begin() + cut.n_kept, held.begin() + cut.n_kept + cut.n_discarded);
    prompt_end_[slot] -= cut.n_discarded;
    shifted_ = slot;
    ++n_shifts;
  }

  void give_back(int32_t slot) override {
    if (!held_[slot].empty()) fault("slot " + std::to_string(slot) + " was given back while it held something");
    std::lock_guard<std::mutex> lock(mutex_);
    given_back_.push_back(slot);
  }

  // All other slots are copied out and put back.
  void wipe(int32_t slot) override {
    ++n_wiped;
    forget(slot, {});
    for (const auto& [other, held] : held_) n_gone_[other] = n_gone_in_copy(other);
  }

  bool can_resume(int32_t slot, Extent kept) const override {
    if (info_.window == 0) return true;
    const auto gone = n_gone_.find(slot);
    const int32_t n_unseen = info_.resumes_in_window ? std::max(0, kept.n_tokens - info_.window + 1) : 0;
    return gone == n_gone_.end() || gone->second <= n_unseen;
  }

  bool has_snapshots() const override { return can_save; }

  Snapshot save(int32_t slot, size_t limit_bytes) override {
    std::vector<Token> held = held_[slot];
    if (slot == shifted_) fault("a slot was copied between its shift and the next step");
    if (info_.window > 0) held.push_back(n_gone_in_copy(slot));
    Snapshot snapshot;
    snapshot.size = held.size() * sizeof(Token);
    if (snapshot.size > limit_bytes || fails_to_save) return {};
    snapshot.bytes.reset(new uint8_t[snapshot.size]);
    std::copy_n(reinterpret_cast<const uint8_t*>(held.data()), snapshot.size, snapshot.bytes.get());
    ++n_saves;
    return snapshot;
  }

  bool load(int32_t slot, const Snapshot& snapshot, Extent wanted) override {
    std::vector<Token>& held = held_[slot];
    if (!held.empty()) fault("slot " + std::to_string(slot) + " got a snapshot while it held something");
    if (wanted.n_tokens == 0) fault("nothing of a snapshot was wanted");
    if (fails_to_load) return false;
    held.resize(snapshot.size / sizeof(Token));
    std::memcpy(held.data(), snapshot.bytes.get(), snapshot.size);
    if (info_.window > 0) {
      n_gone_[slot] = held.back();
      held.pop_back();
    }
    if (static_cast<size_t>(wanted.n_tokens) > held.size()) fault("a snapshot is shorter than what is wanted of it");
    held.resize(static_cast<size_t>(wanted.n_tokens));
    if (!can_resume(slot, wanted)) {
      fault("a snapshot was loaded that lacks what the next token sees");
      wipe(slot);
      return false;
    }
    check_cells();
    note_extent(loads_, wanted);
    return true;
  }

 private:
  // Before the window of the last token nothing is copied.
  int32_t n_gone_in_copy(int32_t slot) const {
    const auto held = held_.find(slot);
    const auto gone = n_gone_.find(slot);
    const int32_t n_held = held == held_.end() ? 0 : static_cast<int32_t>(held->second.size());
    const int32_t n_before = gone == n_gone_.end() ? 0 : gone->second;
    return info_.window == 0 ? 0 : std::max(n_before, n_held - info_.window);
  }

  // A failed batch is half computed: its caller has to forget that half.
  Status judge(const Rows& rows) {
    const auto hold_half = [&] {
      for (size_t i = 0; i < (rows.size() + 1) / 2; ++i) hold(rows[i]);
    };
    try {
      Status status = before_decode(*this, rows);
      if (!status.is_ok()) hold_half();
      return status;
    } catch (...) {
      hold_half();
      throw;
    }
  }

  void note(const Rows& rows) {
    std::vector<Token> names;
    if (!keeps_batches) return;
    for (const Row& row : rows) names.push_back(name(row));
    std::lock_guard<std::mutex> lock(mutex_);
    batches_.push_back(rows);
    adapters_.push_back(used_);
    names_.push_back(names);
  }

  void note_fetched(size_t row) {
    std::lock_guard<std::mutex> lock(mutex_);
    fetched_.push_back(held_.at(batches_.back()[row].slot).front());
  }

  void note_extent(std::vector<Extent>& extents, Extent extent) {
    std::lock_guard<std::mutex> lock(mutex_);
    extents.push_back(extent);
  }

  void check_kind(const Rows& rows) {
    const bool are_rows = rows.front().embedding != nullptr;
    const bool are_non_causal = rows.front().is_non_causal;
    for (const Row& row : rows) {
      if (row.is_non_causal != are_non_causal) fault("a batch has rows that are causal and others");
      if (are_non_causal && row.slot != rows.front().slot) fault("rows of several slots would see each other");
      if ((row.embedding != nullptr) != are_rows) fault("a batch has tokens and embedding rows");
      if (is_row(row.token) != (row.embedding != nullptr)) fault("an id and its embedding do not belong together");
    }
  }

  void fault(const std::string& what) {
    std::lock_guard<std::mutex> lock(mutex_);
    faults_.push_back(what);
  }

  void hold(const Row& row) {
    auto& held = held_[row.slot];
    if (row.position != static_cast<int32_t>(held.size())) {
      fault("slot " + std::to_string(row.slot) + " holds " + std::to_string(held.size()) + " tokens and got position " +
            std::to_string(row.position));
    }
    if (const auto gone = n_gone_.find(row.slot); gone != n_gone_.end()) {
      const bool is_lost = gone->second > std::max(0, row.position - info_.window + 1);
      if (is_lost) fault("position " + std::to_string(row.position) + " sees tokens that are gone");
    }
    held.push_back(row.token);
    check_cells();
  }

  void check_cells() {
    size_t n_cells = 0;
    for (const auto& [slot, held] : held_) n_cells += held.size();
    if (shared_cells > 0 && n_cells > shared_cells) fault("all slots hold " + std::to_string(n_cells) + " tokens");
  }

  void fill(const Row& row, float* logits, size_t size) {
    const auto& held = held_[row.slot];
    const auto script = scripts.find(held[0]);
    if (script == scripts.end()) {
      make_up(held, logits, size);
    } else {
      const size_t said = n_generated_before(row);
      const bool is_over = said >= script->second.size();
      const Token next = is_over ? ByteVocabulary::kEnd : static_cast<uint8_t>(script->second[said]);
      logits[next] = 10.0f;
    }
    if (spoil) spoil(held[0], row.position, logits, size);
  }

  // The prompt ends where logits were wanted first.
  size_t n_generated_before(const Row& row) {
    return static_cast<size_t>(row.position - prompt_end_.try_emplace(row.slot, row.position).first->second);
  }

  // Letters only, so that the text can be read; several are likely, so that a draw depends on its seed.
  static void make_up(const std::vector<Token>& held, float* logits, size_t size) {
    uint32_t hash = 2166136261u;
    for (const Token token : held) hash = (hash ^ static_cast<uint32_t>(token)) * 16777619u;
    for (size_t token = 0; token < size; ++token) {
      logits[token] = token >= 'a' && token <= 'z' ? 0.0f : -std::numeric_limits<float>::infinity();
    }
    for (int i = 0; i < 4; ++i) {
      hash = hash * 1664525u + 1013904223u;
      logits['a' + (hash >> 16) % 26] += 1.0f + static_cast<float>((hash >> 8) % 256) / 256.0f;
    }
  }

  const ByteVocabulary vocabulary_;
  ModelInfo info_;
  std::map<int32_t, std::vector<Token>> held_;  // by slot
  std::map<int32_t, int32_t> n_gone_;           // by slot: its first tokens that are there no more, with a window
  std::map<int32_t, int32_t> prompt_end_;       // by slot: position of the prompt's last token
  std::vector<float> logits_;
  std::map<size_t, std::vector<Token>> picked_tokens_;  // by row
  std::map<size_t, std::vector<float>> picked_logits_;
  std::vector<float> vectors_;
  Adapters used_;
  bool is_waited_for_ = true;
  int32_t shifted_ = -1;  // the slot that was shifted since the last decode()

  mutable std::mutex mutex_;
  std::vector<Rows> batches_;
  std::vector<Adapters> adapters_;
  std::vector<Extent> loads_;
  std::vector<Extent> cuts_;
  std::vector<int32_t> given_back_;
  std::vector<std::vector<Token>> names_;  // of each batch's rows
  std::vector<Token> fetched_;
  std::vector<std::string> faults_;
};

}  // namespace corosrv
