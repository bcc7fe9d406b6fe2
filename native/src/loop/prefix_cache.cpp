#include "loop/prefix_cache.h"

#include <algorithm>
#include <utility>

namespace corosrv {

namespace {

// A snapshot is copied whole, and what is too much is cut off. Copying a token costs some microseconds, computing one
// some hundreds and more, so a match of one in so many tokens pays. A short match saves little beside what a copy costs
// whatever its size: it pays where the snapshot is short as well, as that of a prompt that comes again.
constexpr size_t kShortMatch = 16;
constexpr size_t kCopiedPerComputed = 64;
constexpr size_t kCopiedPerComputedOfShort = 16;

bool is_worth(size_t n_matched, size_t n_copied) {
  const size_t n_payed = n_matched * (n_matched < kShortMatch ? kCopiedPerComputedOfShort : kCopiedPerComputed);
  return n_matched >= PrefixCache::kLeastTokens && n_copied <= n_payed;
}

}  // namespace

size_t common_prefix(const std::vector<Token>& a, const std::vector<Token>& b) {
  const auto size = static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + size, b.begin()).first - a.begin());
}

PrefixCache::Match PrefixCache::find(const std::vector<Token>& tokens, const SharingScope& scope) {
  auto best = entries_.end();
  size_t most = 0, n_lost = 0;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->scope != scope) continue;
    const size_t n_matched = common_prefix(entry->tokens, tokens);
    if (!can_cut(entry->tokens.size(), std::min(n_matched, tokens.size() - 1))) {
      n_lost = std::max(n_lost, n_matched);
      continue;
    }
    if (n_matched < most || !is_worth(n_matched, entry->tokens.size())) continue;
    if (n_matched == most && entry->tokens.size() >= best->tokens.size()) continue;
    best = entry;
    most = n_matched;
  }
  if (best == entries_.end()) return {nullptr, 0, n_lost};
  touch(best);
  return {best->snapshot.get(), most, n_lost};
}

bool PrefixCache::covers(const std::vector<Token>& tokens, const SharingScope& scope) {
  const auto covering =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return holds(entry, tokens, scope); });
  if (covering == entries_.end()) return false;
  touch(covering);
  return true;
}

std::shared_ptr<const Snapshot> PrefixCache::holding(const std::vector<Token>& tokens,
                                                     const SharingScope& scope) const {
  const Entry* best = nullptr;
  for (const Entry& entry : entries_) {
    if (holds(entry, tokens, scope) && (best == nullptr || entry.tokens.size() < best->tokens.size())) best = &entry;
  }
  return best == nullptr ? nullptr : best->snapshot;
}

bool PrefixCache::forget(const std::vector<Token>& tokens, const SharingScope& scope) {
  const size_t n_before = entries_.size();
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    if (entry->begins_with(tokens, scope)) drop(entry);
    entry = next;
  }
  return entries_.size() < n_before;
}

void PrefixCache::keep(std::vector<Token> tokens, std::shared_ptr<const Snapshot> snapshot, const SharingScope& scope) {
  Entry entry{std::move(tokens), scope, std::move(snapshot)};
  if (entry.bytes() > limit_bytes_) return;
  for (auto other = entries_.begin(); other != entries_.end();) {
    const auto next = std::next(other);
    if (holds(entry, other->tokens, other->scope)) drop(other);
    other = next;
  }
  while (bytes_ + entry.bytes() > limit_bytes_) drop(std::prev(entries_.end()));
  bytes_ += entry.bytes();
  entries_.push_front(std::move(entry));
}

void PrefixCache::shrink(size_t bytes) {
  while (bytes_ > bytes && entries_.size() > 1) drop(std::prev(entries_.end()));
}

void PrefixCache::drop(Entries::iterator entry) {
  bytes_ -= entry->bytes();
  entries_.erase(entry);
}

}  // namespace corosrv
