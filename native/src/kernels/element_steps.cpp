#include "kernels/element_steps.h"

#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/tensor_view.h"

namespace corosrv {

namespace {

using Kind = Division::Kind;

// Returns whether the rows are of floats that whole registers read, and lie in their order.
bool has_float_rows(const ggml_tensor& tensor) {
  return tensor.type == GGML_TYPE_F32 && tensor.nb[0] == sizeof(float) && extent(tensor, 0) % kElementStep == 0 &&
         tensor.nb[1] >= extent(tensor, 0) * sizeof(float) && tensor.nb[2] >= tensor.nb[1] * extent(tensor, 1) &&
         tensor.nb[3] >= tensor.nb[2] * extent(tensor, 2);
}

float* floats_at(const ggml_tensor& tensor, size_t row) { return reinterpret_cast<float*>(row_at(tensor, row)); }

// Threads take rows, which lie evenly only in tensors without gaps between planes.
Division by_rows(const ggml_tensor& tensor) { return {Kind::kRows, row_count(tensor), tensor.nb[1]}; }

// Of heads by tokens: all heads of a token are one part.
Division by_tokens(const ggml_tensor& tensor) { return {Kind::kRows, extent(tensor, 2), tensor.nb[2]}; }

bool is_contiguous(const ggml_tensor& tensor) { return has_float_rows(tensor) && ggml_is_contiguous(&tensor); }

bool has_number_for_each_row(const ggml_tensor& numbers, const ggml_tensor& rows) {
  return numbers.type == GGML_TYPE_F32 && numbers.ne[0] == 1 && rows.ne[0] > 1 && numbers.ne[1] == rows.ne[1] &&
         numbers.ne[2] == rows.ne[2] && numbers.ne[3] == rows.ne[3];
}

// Of a tensor with the shape of one that threads divide: rows with gaps between them are other parts of memory.
Access reads_rows(const ggml_tensor& tensor, Division division) {
  return reads(tensor, ggml_is_contiguous(&tensor) ? division : Division{});
}

// Returns how threads divide a node that is the result of one of the last steps; kNone where it is of none of them.
Division division_of(const NodeRun& run, const ggml_tensor* node) {
  constexpr size_t kLast = 4;
  for (size_t i = 1; i <= std::min(kLast, run.size()); ++i) {
    if (run.from_end(i).node == node) return run.from_end(i).division;
  }
  return {};
}

int32_t int_param(const ggml_tensor& node, size_t i) { return node.op_params[i]; }

float float_param(const ggml_tensor& node, size_t i) {
  float value;
  std::memcpy(&value, &node.op_params[i], sizeof value);
  return value;
}

// Indices of the parameters of GGML_OP_ROPE.
enum RopeParam {
  kNumbers = 1,
  kMode = 2,
  kOriginalContext = 4,
  kBase = 5,
  kScale = 6,
  kExtrapolation = 7,
  kMagnitude = 8,
  kFast = 9,
  kSlow = 10,
  kOffset = 15
};

// The most tokens of a rotation, as many as the largest batch has. When a context with quantised keys is cut, all cells
// of its cache are rotated: the angles of a long one would take much memory, for good.
constexpr int64_t kMostTokens = 1 << 16;

}  // namespace

ElementSteps::Add ElementSteps::add_of(const ggml_tensor& node) {
  switch (node.op) {
    case GGML_OP_ADD:
    case GGML_OP_MUL:
      return &ElementSteps::add_sum_or_product;
    case GGML_OP_ADD_ID:
      return &ElementSteps::add_biases;
    case GGML_OP_RMS_NORM:
      return &ElementSteps::add_norm;
    case GGML_OP_GLU:
      return &ElementSteps::add_gate;
    case GGML_OP_ROPE:
      return &ElementSteps::add_rotation;
    case GGML_OP_SET_ROWS:
      return &ElementSteps::add_writing;
    default:
      return nullptr;
  }
}

void ElementSteps::forget_inputs() {
  for (Rotation& rotation : rotations_) rotation.is_made = false;
}

// The second tensor has the shape of the first, or one row for all rows; that of a product may have one number for each
// row.
bool ElementSteps::add_sum_or_product(NodeRun& run, ggml_tensor* node) {
  const ggml_tensor &first = *node->src[0], &second = *node->src[1];
  if (!is_contiguous(*node) || !has_float_rows(first) || !ggml_are_same_shape(node, &first)) return false;
  const Division division = by_rows(*node);
  const bool is_sum = node->op == GGML_OP_ADD, is_alike = ggml_are_same_shape(node, &second);
  Step step{is_sum ? &combine<&ElementKernels::add> : &combine<&ElementKernels::multiply>, node, &kernels_, division};
  if (!is_sum && has_number_for_each_row(second, *node)) {
    step.compute = &scale;
  } else if (!has_float_rows(second) || (!is_alike && (row_count(second) != 1 || second.ne[0] != node->ne[0]))) {
    return false;
  }
  run.add(step, {reads_rows(first, division), is_alike ? reads_rows(second, division) : reads(second),
                 writes(*node, division)});
  return true;
}

bool ElementSteps::add_norm(NodeRun& run, ggml_tensor* node) {
  const ggml_tensor& input = *node->src[0];
  if (!is_contiguous(*node) || !has_float_rows(input) || !ggml_are_same_shape(node, &input)) return false;
  const Division division = by_rows(*node);
  Step step{&normalize, node, &kernels_, division};
  step.number = float_param(*node, 0);
  run.add(step, {reads_rows(input, division), writes(*node, division)});
  return true;
}

// Adds to each row the biases of the expert that computed it.
bool ElementSteps::add_biases(NodeRun& run, ggml_tensor* node) {
  const ggml_tensor &rows = *node->src[0], &biases = *node->src[1], &ids = *node->src[2];
  if (!is_contiguous(*node) || !is_contiguous(rows) || !has_float_rows(biases) || node->ne[3] != 1) return false;
  Division division = division_of(run, &rows);
  if (division.kind != Kind::kColumns) division = by_rows(*node);
  run.add({&combine_by_expert, node, &kernels_, division},
          {reads(rows, division), reads(biases), reads(ids), writes(*node, division)});
  return true;
}

// Where the gates and the values are results of the last steps, threads divide them as those do.
bool ElementSteps::add_gate(NodeRun& run, ggml_tensor* node) {
  const ggml_tensor *gates = node->src[0], *values = node->src[1];
  const ggml_glu_op kind = ggml_get_glu_op(node);
  if (values == nullptr || !is_contiguous(*node) || !has_float_rows(*gates) || !has_float_rows(*values)) return false;
  const Division columns = division_of(run, gates);
  const bool has_columns = columns.kind == Kind::kColumns && columns == division_of(run, values);
  const Division division = has_columns ? columns : by_rows(*node);
  Step::Compute compute;
  if (kind == GGML_GLU_OP_SWIGLU) {
    compute = has_columns ? &combine_columns<&ElementKernels::gate> : &combine<&ElementKernels::gate>;
  } else if (kind == GGML_GLU_OP_GEGLU) {
    compute = has_columns ? &combine_columns<&ElementKernels::gate_by_gelu> : &combine<&ElementKernels::gate_by_gelu>;
  } else if (kind == GGML_GLU_OP_SWIGLU_OAI && float_param(*node, 2) == kGateSteepness &&
             float_param(*node, 3) == kGateLimit) {
    compute = has_columns ? &combine_columns<&ElementKernels::gate_within_limits>
                          : &combine<&ElementKernels::gate_within_limits>;
  } else {
    return false;
  }
  run.add({compute, node, &kernels_, division},
          {reads_rows(*gates, division), reads_rows(*values, division), writes(*node, division)});
  return true;
}

ElementSteps::Angles ElementSteps::angles_of(const ggml_tensor& node) {
  return {node.src[1],
          node.src[2],
          int_param(node, kNumbers),
          int_param(node, kMode),
          int_param(node, kOriginalContext),
          float_param(node, kBase),
          float_param(node, kScale),
          float_param(node, kExtrapolation),
          float_param(node, kMagnitude),
          float_param(node, kFast),
          float_param(node, kSlow)};
}

bool ElementSteps::Angles::operator==(const Angles& other) const {
  return positions == other.positions && factors == other.factors && n_numbers == other.n_numbers &&
         mode == other.mode && original_context == other.original_context && base == other.base &&
         scale == other.scale && extrapolation == other.extrapolation && magnitude == other.magnitude &&
         fast == other.fast && slow == other.slow;
}

ElementSteps::Rotation& ElementSteps::rotation_of(const Angles& angles) {
  const auto known = std::find_if(rotations_.begin(), rotations_.end(),
                                  [&](const Rotation& rotation) { return rotation.angles == angles; });
  return known != rotations_.end() ? *known : rotations_.emplace_back(Rotation{angles});
}

// Of heads by tokens, by one position each.
bool ElementSteps::add_rotation(NodeRun& run, ggml_tensor* node) {
  const ggml_tensor &input = *node->src[0], &positions = *node->src[1];
  const Angles angles = angles_of(*node);
  const bool are_neighbours = angles.mode == GGML_ROPE_TYPE_NORMAL;
  if ((!are_neighbours && angles.mode != GGML_ROPE_TYPE_NEOX) || int_param(*node, kOffset) != 0) return false;
  if (!is_contiguous(*node) || !has_float_rows(input) || node->ne[3] != 1 || node->ne[2] > kMostTokens) return false;
  if (positions.type != GGML_TYPE_I32 || positions.ne[0] != node->ne[2] || angles.n_numbers > node->ne[0] ||
      static_cast<size_t>(angles.n_numbers) % (2 * kElementStep) != 0) {
    return false;
  }

  Rotation& rotation = rotation_of(angles);
  const auto* const place = reinterpret_cast<const char*>(&rotation);
  const Division by_token{Kind::kRows, extent(*node, 2), 0};
  if (!rotation.is_made) {
    const size_t n_floats = 2 * static_cast<size_t>(angles.n_numbers) * extent(*node, 2);
    if (rotation.numbers.size() < n_floats) rotation.numbers.resize(n_floats);
    rotation.is_made = true;
    const ggml_tensor& factors = angles.factors == nullptr ? positions : *angles.factors;
    run.add({&make_angles, node, &rotation, by_token},
            {reads(positions), reads(factors), {place, place + sizeof rotation, true, by_token}});
  }
  Step step{nullptr, node, &kernels_, by_tokens(*node)};
  step.compute = are_neighbours ? &rotate<&ElementKernels::rotate_neighbours> : &rotate<&ElementKernels::rotate_halves>;
  step.detail = &rotation;
  run.add(step, {{place, place + sizeof rotation, false, by_token},
                 reads(input, by_tokens(input)),
                 writes(*node, by_tokens(*node))});
  return true;
}

// Of the rows of one plane, to a cache of 16-bit floats.
bool ElementSteps::add_writing(NodeRun& run, ggml_tensor* node) {
  const ggml_tensor &input = *node->src[0], &rows = *node->src[1];
  if (node->type != GGML_TYPE_F16 || node->nb[0] != sizeof(uint16_t) || rows.type != GGML_TYPE_I64) return false;
  if (!has_float_rows(input) || node->ne[0] != input.ne[0] || row_count(input) != extent(input, 1)) return false;
  if (node->ne[2] != 1 || node->ne[3] != 1 || ggml_nelements(&rows) != input.ne[1] || !ggml_is_contiguous(&rows)) {
    return false;
  }
  run.add({&write, node, &kernels_}, {reads(input, by_rows(input)), reads(rows), writes(*node)});
  return true;
}

template <auto kRoutine>
void ElementSteps::combine(const Step& step, int thread, int n_threads) {
  const auto& kernels = *static_cast<const ElementKernels*>(step.context);
  const ggml_tensor &node = *step.node, &first = *node.src[0], &second = *node.src[1];
  const bool has_one_row = row_count(second) == 1;
  const ThreadShare share = share_of(step.division.n_parts, thread, n_threads);
  for (size_t row = share.from; row < share.to; ++row) {
    (kernels.*kRoutine)(floats_at(first, row), floats_at(second, has_one_row ? 0 : row), extent(node, 0),
                        floats_at(node, row));
  }
}

void ElementSteps::combine_by_expert(const Step& step, int thread, int n_threads) {
  const auto& kernels = *static_cast<const ElementKernels*>(step.context);
  const ggml_tensor &node = *step.node, &ids = *node.src[2];
  const bool has_columns = step.division.kind == Kind::kColumns;
  const ThreadShare share = share_of(step.division.n_parts, thread, n_threads);
  const ThreadShare rows = has_columns ? ThreadShare{0, row_count(node)} : share;
  const size_t first = has_columns ? share.from * step.division.size : 0;
  const size_t n = has_columns ? (share.to - share.from) * step.division.size : extent(node, 0);
  for (size_t row = rows.from; row < rows.to; ++row) {
    const uint8_t* id = row_at(ids, row / extent(node, 1), 0, 0) + row % extent(node, 1) * ids.nb[0];
    const auto expert = static_cast<size_t>(*reinterpret_cast<const int32_t*>(id));
    kernels.add(floats_at(*node.src[0], row) + first, floats_at(*node.src[1], expert) + first, n,
                floats_at(node, row) + first);
  }
}

void ElementSteps::scale(const Step& step, int thread, int n_threads) {
  const auto& kernels = *static_cast<const ElementKernels*>(step.context);
  const ggml_tensor &node = *step.node, &rows = *node.src[0], &factors = *node.src[1];
  const ThreadShare share = share_of(step.division.n_parts, thread, n_threads);
  for (size_t row = share.from; row < share.to; ++row) {
    kernels.scale(floats_at(rows, row), extent(node, 0), *floats_at(factors, row), floats_at(node, row));
  }
}

void ElementSteps::normalize(const Step& step, int thread, int n_threads) {
  const auto& kernels = *static_cast<const ElementKernels*>(step.context);
  const ggml_tensor &node = *step.node, &input = *node.src[0];
  const ThreadShare share = share_of(step.division.n_parts, thread, n_threads);
  for (size_t row = share.from; row < share.to; ++row) {
    kernels.normalize(floats_at(input, row), extent(node, 0), step.number, floats_at(node, row));
  }
}

template <auto kRoutine>
void ElementSteps::combine_columns(const Step& step, int thread, int n_threads) {
  const auto& kernels = *static_cast<const ElementKernels*>(step.context);
  const ggml_tensor& node = *step.node;
  const ThreadShare share = share_of(step.division.n_parts, thread, n_threads);
  const size_t first = share.from * step.division.size, n = (share.to - share.from) * step.division.size;
  for (size_t row = 0; row < row_count(node); ++row) {
    (kernels.*kRoutine)(floats_at(*node.src[0], row) + first, floats_at(*node.src[1], row) + first, n,
                        floats_at(node, row) + first);
  }
}

// YaRN, of which the other rotations are special cases: fast pairs keep their angles where a context is stretched.
void ElementSteps::make_angles(const Step& step, int thread, int n_threads) {
  auto& rotation = *static_cast<Rotation*>(const_cast<void*>(step.context));
  const Angles& angles = rotation.angles;
  const auto n = static_cast<size_t>(angles.n_numbers);
  const auto* const positions = static_cast<const int32_t*>(angles.positions->data);
  const auto* const factors = angles.factors == nullptr ? nullptr : static_cast<const float*>(angles.factors->data);
  const bool are_neighbours = angles.mode == GGML_ROPE_TYPE_NORMAL, is_mixed = angles.extrapolation != 0.0f;
  const float ratio = std::pow(angles.base, -2.0f / static_cast<float>(angles.n_numbers));
  const float magnitude = angles.magnitude * (is_mixed ? 1.0f + 0.1f * std::log(1.0f / angles.scale) : 1.0f);
  float bounds[2];
  ggml_rope_yarn_corr_dims(angles.n_numbers, angles.original_context, angles.base, angles.fast, angles.slow, bounds);
  const ThreadShare share = share_of(step.division.n_parts, thread, n_threads);
  for (size_t token = share.from; token < share.to; ++token) {
    float* const cosines = &rotation.numbers[2 * n * token];
    float* const sines = cosines + n;
    auto unscaled = static_cast<float>(positions[token]);
    for (size_t pair = 0; pair < n / 2; ++pair, unscaled *= ratio) {
      const float whole = unscaled / (factors == nullptr ? 1.0f : factors[pair]);
      float angle = angles.scale * whole;
      if (is_mixed) {
        const float slowness = (static_cast<float>(pair) - bounds[0]) / std::max(0.001f, bounds[1] - bounds[0]);
        const float kept = (1.0f - std::min(1.0f, std::max(0.0f, slowness))) * angles.extrapolation;
        angle = angle * (1.0f - kept) + whole * kept;
      }
      const size_t first = are_neighbours ? 2 * pair : pair, second = are_neighbours ? first + 1 : first + n / 2;
      cosines[first] = cosines[second] = std::cos(angle) * magnitude;
      sines[second] = std::sin(angle) * magnitude;
      sines[first] = -sines[second];
    }
  }
}

template <auto kRoutine>
void ElementSteps::rotate(const Step& step, int thread, int n_threads) {
  const auto& kernels = *static_cast<const ElementKernels*>(step.context);
  const auto& rotation = *static_cast<const Rotation*>(step.detail);
  const ggml_tensor &node = *step.node, &input = *node.src[0];
  const auto n = static_cast<size_t>(rotation.angles.n_numbers);
  const ThreadShare share = share_of(step.division.n_parts, thread, n_threads);
  for (size_t token = share.from; token < share.to; ++token) {
    const float* const cosines = &rotation.numbers[2 * n * token];
    for (size_t head = 0; head < extent(node, 1); ++head) {
      const auto* const from = reinterpret_cast<const float*>(row_at(input, head, token, 0));
      auto* const to = reinterpret_cast<float*>(row_at(node, head, token, 0));
      (kernels.*kRoutine)(from, cosines, cosines + n, n, to);
      if (from != to) std::copy(from + n, from + extent(node, 0), to + n);
    }
  }
}

void ElementSteps::write(const Step& step, int thread, int n_threads) {
  const auto& kernels = *static_cast<const ElementKernels*>(step.context);
  const ggml_tensor &node = *step.node, &input = *node.src[0];
  const auto* const rows = static_cast<const int64_t*>(node.src[1]->data);
  const ThreadShare share = share_of(extent(input, 1), thread, n_threads);
  for (size_t row = share.from; row < share.to; ++row) {
    uint8_t* const to = row_at(node, static_cast<size_t>(rows[row]), 0, 0);
    kernels.round_to_halves(floats_at(input, row), extent(input, 0), reinterpret_cast<uint16_t*>(to));
  }
}

}  // namespace corosrv
