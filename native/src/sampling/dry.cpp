#include "sampling/dry.h"

#include <cmath>
#include <limits>
#include <string_view>
#include <unordered_map>

#include "sampling/penalties.h"

namespace corosrv {

namespace {

const float kMostExponent = std::log(std::numeric_limits<float>::max());  // of e, that a float can hold

// For each i from 1: how many tokens, counted from the newest one back, are the same from the i-th newest one back.
// The Z-function: each comparison that succeeds moves the end of the furthest match, so that it is linear.
template <typename Newest>
std::vector<size_t> repetitions(size_t size, Newest newest) {
  std::vector<size_t> lengths(size, 0);
  size_t match = 0;  // the match that reaches furthest begins here
  size_t end = 0;    // and ends before here
  for (size_t i = 1; i < size; ++i) {
    size_t length = i < end ? std::min(lengths[i - match], end - i) : 0;
    while (i + length < size && newest(length) == newest(i + length)) ++length;
    lengths[i] = length;
    if (i + length > end) {
      match = i;
      end = i + length;
    }
  }
  return lengths;
}

}  // namespace

DryBreakers::DryBreakers(const std::vector<std::string>& texts, const Vocabulary& vocabulary)
    : is_breaker_(static_cast<size_t>(vocabulary.size())) {
  for (const std::string& text : texts) {
    std::vector<uint32_t> rest_of(text.size(), 0);  // by how much of the text came before; 0: not known yet
    for (Token token = 0; token < vocabulary.size(); ++token) {
      const std::string_view spelled = vocabulary.special_text(token);
      if (spelled.find(text) != std::string_view::npos) {
        is_breaker_[static_cast<size_t>(token)] = true;
        continue;
      }
      // The ways in which it can end with the beginning of the breaker.
      for (size_t size = std::min(text.size() - 1, spelled.size()); size > 0; --size) {
        if (spelled.substr(spelled.size() - size) != std::string_view(text).substr(0, size)) continue;
        if (rest_of[size] == 0) {
          std::vector<Token> rest = vocabulary.tokenize(std::string_view(text).substr(size), false, false);
          rest.resize(std::min(rest.size(), kMostTokens));
          rests_.push_back(std::move(rest));
          rest_of[size] = static_cast<uint32_t>(rests_.size());
        }
        beginnings_.emplace_back(token, rest_of[size] - 1);
      }
    }
  }
  std::sort(beginnings_.begin(), beginnings_.end());
}

Dry::Dry(const Sampling& sampling, int32_t context)
    : multiplier_(sampling.dry_multiplier),
      base_(sampling.dry_base),
      allowed_length_(static_cast<size_t>(std::max(sampling.dry_allowed_length, 0))),
      size_(window_size(sampling.dry_penalty_last_n, context)),
      breakers_(sampling.dry_breakers) {}

void Dry::accept(Token token) {
  if (window_.size() < size_) {
    newest_ = window_.size();
    window_.push_back(token);
  } else {
    newest_ = (newest_ + 1) % size_;
    window_[newest_] = token;
  }
}

void Dry::change(Logits& logits) {
  if (window_.size() <= allowed_length_) return;
  const size_t most = longest_repetition();
  if (most < allowed_length_) return;
  const auto at = [this](size_t i) { return newest(i); };
  const std::vector<size_t> lengths = repetitions(window_.size(), at);
  std::unordered_map<Token, size_t> longest;  // repetition that a token would go on with
  for (size_t i = 1; i < lengths.size(); ++i) {
    const size_t length = std::min(lengths[i], most);
    if (length < allowed_length_) continue;
    size_t& known = longest[newest(i - 1)];
    known = std::max(known, length);
  }
  for (const auto& [token, length] : longest) {
    float* logit = breakers_ && breakers_->is_breaker(token) ? nullptr : logits.find(token);
    if (logit != nullptr) *logit -= penalty(length);
  }
}

// Tokens at the end in which there is no breaker.
size_t Dry::longest_repetition() const {
  if (!breakers_) return window_.size();
  for (size_t i = 0; i < window_.size(); ++i) {
    const int32_t length = breakers_->longest(newest(i), i, [&](size_t behind) { return newest(i - behind - 1); });
    if (length >= 0) return i - static_cast<size_t>(length);
  }
  return window_.size();
}

float Dry::penalty(size_t length) const {
  auto exponent = static_cast<float>(length - allowed_length_);
  if (base_ > 1.000001f) exponent = std::min(exponent, std::floor(kMostExponent / std::log(base_)));
  return multiplier_ * std::pow(base_, exponent);
}

}  // namespace corosrv
