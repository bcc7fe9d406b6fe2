#include "loop/pooler.h"

#include <algorithm>
#include <cmath>

namespace corosrv {

namespace {

double norm_of(const std::vector<float>& vector, int32_t norm) {
  double total = 0;
  if (norm == 0) {
    for (const float value : vector) total = std::max(total, std::abs(double{value}));
    return total / 32760;
  }
  for (const float value : vector) total += std::pow(std::abs(double{value}), norm);
  return std::pow(total, 1.0 / norm);
}

}  // namespace

void normalize(std::vector<float>& vector, int32_t norm) {
  if (norm < 0) return;
  const double length = norm_of(vector, norm);
  const double factor = length > 0 ? 1 / length : 0;
  for (float& value : vector) value = static_cast<float>(value * factor);
}

Pooler::Pooler(const VectorWish& wish) : wish_(wish) { clear(); }

void Pooler::clear() {
  n_added_ = 0;
  vectors_.clear();
  sum_.assign(wish_.pooling == Pooling::kMean ? size() : 0, 0);
}

void Pooler::add(const float* vector) {
  const bool is_first = n_added_++ == 0;
  switch (wish_.pooling) {
    case Pooling::kMean:
      for (size_t i = 0; i < size(); ++i) sum_[i] += double{vector[i]};
      break;
    case Pooling::kCls:
      if (is_first) vectors_.assign(vector, vector + size());
      break;
    case Pooling::kLast:
    case Pooling::kRank:
      vectors_.assign(vector, vector + size());
      break;
    case Pooling::kNone:
      vectors_.insert(vectors_.end(), vector, vector + size());
      break;
  }
}

std::vector<float> Pooler::result() const {
  std::vector<float> result = vectors_;
  for (const double sum : sum_) result.push_back(static_cast<float>(sum / static_cast<double>(n_added_)));
  if (wish_.pooling != Pooling::kNone && wish_.pooling != Pooling::kRank) normalize(result, wish_.normalize);
  return result;
}

}  // namespace corosrv
