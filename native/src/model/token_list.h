// Tokens that came, and how likely they and others in their place were.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace corosrv {

// A token and how likely it was. Each token that came is followed by the likeliest in its place, best first.
struct Likelihood {
  int32_t token;
  float logprob;       // natural, finite; NaN: the first token of a prompt, which nothing stands before
  int32_t n_top;       // how many of the entries behind it are the likeliest in its place; of those, 0
  int32_t piece_size;  // bytes that it adds to the text
};

// Entries, and their pieces one behind the other. Complete: whoever reads it needs no vocabulary.
class TokenList {
 public:
  // A token that came; `n_top` others follow, by add_other().
  void add(int32_t token, float logprob, std::string_view piece, size_t n_top) {
    entries_.push_back({token, logprob, static_cast<int32_t>(n_top), static_cast<int32_t>(piece.size())});
    pieces_ += piece;
  }
  void add_other(int32_t token, float logprob, std::string_view piece) { add(token, logprob, piece, 0); }

  void append(const TokenList& more) {
    entries_.insert(entries_.end(), more.entries_.begin(), more.entries_.end());
    pieces_ += more.pieces_;
  }

  // Leaves of the first token's piece so many bytes.
  void cut_first_piece(size_t size) {
    auto& piece_size = entries_.front().piece_size;
    pieces_.erase(size, static_cast<size_t>(piece_size) - size);
    piece_size = static_cast<int32_t>(size);
  }

  bool is_empty() const { return entries_.empty(); }
  size_t bytes() const { return entries_.size() * sizeof entries_[0] + pieces_.size(); }
  const std::vector<Likelihood>& entries() const { return entries_; }
  const std::string& pieces() const { return pieces_; }

 private:
  std::vector<Likelihood> entries_;
  std::string pieces_;
};

}  // namespace corosrv
