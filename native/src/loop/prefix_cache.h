// What was computed before: token sequences and the KV cache they left, up to a limit of bytes.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "model/backend.h"
#include "model/types.h"

namespace corosrv {

// How many tokens two sequences begin with alike.
size_t common_prefix(const std::vector<Token>& a, const std::vector<Token>& b);

// Every entry is found by its own scope only. Entries in order of use; the one that was not used longest goes first
// when room is needed. Pure bookkeeping: it knows no slot and no model. Used by the decode thread alone.
//
// A match is a scan over all entries. Most differ within a few tokens, and there are hundreds and not millions of them,
// each worth milliseconds of prefill: next to a step the scan does not show (test_prefix_cache.cpp has a bound).
class PrefixCache {
 public:
  // 0 keeps nothing. `window`, `resumes_in_window`: see ModelInfo.
  explicit PrefixCache(size_t limit_bytes, int32_t window = 0, bool resumes_in_window = false)
      : limit_bytes_(limit_bytes), window_(static_cast<size_t>(window)), resumes_in_window_(resumes_in_window) {}

  // Whether one can begin with `n_kept` tokens of a copy of `n_held`. Of more than a window a copy has those alone that
  // its next token sees, which is enough for the last of its own as well.
  bool can_cut(size_t n_held, size_t n_kept) const {
    return window_ == 0 || n_held <= window_ || (resumes_in_window_ && n_kept + 1 >= n_held);
  }

  struct Match {
    const Snapshot* snapshot = nullptr;  // until the next keep()
    size_t n_tokens = 0;
    size_t n_lost = 0;  // the most that any entry has in common which cannot be cut there
  };
  // The scope's entry that begins with most of `tokens`, the shortest of several; null where none is worth its copying.
  // It counts as used.
  Match find(const std::vector<Token>& tokens, const SharingScope& scope = {});

  // Whether some entry of the scope's begins with all of `tokens`, and can be cut there; it then counts as used.
  bool covers(const std::vector<Token>& tokens, const SharingScope& scope = {});

  // Takes in what `tokens` left, in place of the scope's entries that it can be cut to, and lets go of the oldest,
  // whoever's, until all fit. Nothing happens when it is over the limit by itself.
  void keep(std::vector<Token> tokens, std::shared_ptr<const Snapshot> snapshot, const SharingScope& scope = {});
  void keep(std::vector<Token> tokens, Snapshot snapshot, const SharingScope& scope = {}) {
    keep(std::move(tokens), std::make_shared<const Snapshot>(std::move(snapshot)), scope);
  }

  // The shortest of the scope's entries that begin with all of `tokens`, and may be cut there; null where there is
  // none.
  std::shared_ptr<const Snapshot> holding(const std::vector<Token>& tokens, const SharingScope& scope) const;

  // Drops the scope's entries that begin with all of `tokens`; false where there were none.
  bool forget(const std::vector<Token>& tokens, const SharingScope& scope);

  // Lets go of the oldest until the others take no more than `bytes`; the one that was used last stays in any case.
  void shrink(size_t bytes);
  // Lets go of all.
  void clear() {
    entries_.clear();
    bytes_ = 0;
  }

  size_t limit_bytes() const { return limit_bytes_; }
  size_t bytes() const { return bytes_; }
  size_t size() const { return entries_.size(); }

  // A prefix shorter than this is computed again: copying costs about as much.
  static constexpr size_t kLeastTokens = 4;

 private:
  struct Entry {
    std::vector<Token> tokens;
    SharingScope scope;
    std::shared_ptr<const Snapshot> snapshot;  // whoever copies it out shares it for a while
    size_t bytes() const { return tokens.size() * sizeof(Token) + snapshot->size; }
    bool begins_with(const std::vector<Token>& wanted, const SharingScope& by) const {
      return scope == by && common_prefix(tokens, wanted) == wanted.size();
    }
  };
  using Entries = std::list<Entry>;

  // And can be cut there.
  bool holds(const Entry& entry, const std::vector<Token>& wanted, const SharingScope& scope) const {
    return entry.begins_with(wanted, scope) && can_cut(entry.tokens.size(), wanted.size());
  }
  void touch(Entries::iterator entry) { entries_.splice(entries_.begin(), entries_, entry); }
  void drop(Entries::iterator entry);

  const size_t limit_bytes_;
  const size_t window_;
  const bool resumes_in_window_;
  size_t bytes_ = 0;
  Entries entries_;  // the one used last comes first
};

}  // namespace corosrv
