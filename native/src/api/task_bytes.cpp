#include "api/task_bytes.h"

#include <cstdint>
#include <list>
#include <vector>

#include "recording/bytes.h"

namespace corosrv {

// What the pointers of a task point to; the addresses in it hold while it grows.
struct StoredTask::Parts {
  std::list<std::string> texts;
  std::list<std::vector<corosrv_text>> text_lists;
  std::list<std::vector<int32_t>> integers;
  std::list<std::vector<float>> floats;
  std::list<std::vector<uint8_t>> bytes;
  std::list<std::vector<corosrv_bias>> biases;
  std::list<std::vector<corosrv_row_segment>> segments;
};

namespace {

// Whoever adds a member that points to something adds it to visit_parts(); the others travel with the struct.
static_assert(sizeof(corosrv_task) == 496 && sizeof(corosrv_sampling) == 256, "is there a new pointer?");

// Calls `part` with each thing that a task points to: with the pointer, and the number of items behind it.
template <typename TaskOf, typename Part>
void visit_parts(TaskOf& task, size_t n_adapters, size_t row_width, Part& part) {
  auto& sampling = task.sampling;
  part(task.tokens, task.n_tokens);
  part(sampling.biases, sampling.n_biases);
  part(sampling.grammar);
  part(sampling.grammar_triggers, sampling.n_grammar_triggers);
  part(sampling.dry_breakers, sampling.n_dry_breakers);
  part(sampling.samplers, sampling.n_samplers);
  part(sampling.thought_opening);
  part(sampling.thought_closing);
  part(sampling.thought_ending, sampling.n_thought_ending);
  part(task.stops, task.n_stops);
  part(task.adapter_scales, task.adapter_scales == nullptr ? 0 : n_adapters);
  part(task.rows, task.n_rows * row_width);
  part(task.row_segments, task.n_row_segments);
  part(task.prediction, task.n_prediction);
  part(task.generated, task.n_generated);
  part(task.state, task.n_state);
}

class PartWriter {
 public:
  explicit PartWriter(ByteWriter& out) : out_(out) {}

  template <typename Value>
  void operator()(const Value* values, size_t n_values) {
    out_.array(values, n_values);
  }
  void operator()(const corosrv_text& text) { out_.text({text.data, text.size}); }
  void operator()(const corosrv_text* texts, size_t n_texts) {
    out_.number(n_texts);
    for (size_t i = 0; i < n_texts; ++i) (*this)(texts[i]);
  }
  void operator()(const corosrv_row_segment* segments, size_t n_segments) {
    out_.array(segments, n_segments);
    for (size_t i = 0; i < n_segments; ++i) {
      if (segments[i].positions != nullptr) out_.array(segments[i].positions, numbers_of(segments[i]));
    }
  }
  static size_t numbers_of(const corosrv_row_segment& segment) { return 4 * static_cast<size_t>(segment.n_rows); }

 private:
  ByteWriter& out_;
};

template <typename Lists, typename Pointer>
bool keep(Lists& lists, Pointer& pointer, typename Lists::value_type values, size_t n_expected) {
  const bool is_whole = values.size() == n_expected;
  lists.push_back(std::move(values));
  pointer = lists.back().empty() ? nullptr : lists.back().data();
  return is_whole;
}

// Puts pointers to what it reads into the task; false from is_whole() where sizes do not fit the struct.
template <typename Parts>
class PartReader {
 public:
  PartReader(ByteReader& in, Parts& parts) : in_(in), parts_(parts) {}
  bool is_whole() const { return is_whole_ && in_.is_good(); }

  void operator()(const int32_t*& values, size_t n) { note(keep(parts_.integers, values, in_.array<int32_t>(), n)); }
  void operator()(const float*& values, size_t n) { note(keep(parts_.floats, values, in_.array<float>(), n)); }
  void operator()(const uint8_t*& values, size_t n) { note(keep(parts_.bytes, values, in_.array<uint8_t>(), n)); }
  void operator()(const corosrv_bias*& values, size_t n) {
    note(keep(parts_.biases, values, in_.array<corosrv_bias>(), n));
  }
  void operator()(corosrv_text& text) {
    const size_t size = text.size;
    parts_.texts.push_back(in_.text());
    text = {parts_.texts.back().data(), parts_.texts.back().size()};
    note(text.size == size);
  }
  void operator()(const corosrv_text*& texts, size_t n_texts) {
    std::vector<corosrv_text> read(in_.count(1));
    for (corosrv_text& text : read) {
      parts_.texts.push_back(in_.text());
      text = {parts_.texts.back().data(), parts_.texts.back().size()};
    }
    note(keep(parts_.text_lists, texts, std::move(read), n_texts));
  }
  void operator()(const corosrv_row_segment*& segments, size_t n_segments) {
    auto read = in_.array<corosrv_row_segment>();
    for (corosrv_row_segment& segment : read) {
      if (segment.positions == nullptr) continue;
      note(segment.n_rows >= 0);
      note(keep(parts_.integers, segment.positions, in_.array<int32_t>(), PartWriter::numbers_of(segment)));
    }
    note(keep(parts_.segments, segments, std::move(read), n_segments));
  }

 private:
  void note(bool is_whole) { is_whole_ = is_whole_ && is_whole; }

  ByteReader& in_;
  Parts& parts_;
  bool is_whole_ = true;
};

}  // namespace

std::string to_bytes(const corosrv_task& task, const ModelInfo& model) {
  ByteWriter out(sizeof(task) + task.n_tokens * sizeof(int32_t) + 256);
  out.fixed(task);
  PartWriter writer(out);
  visit_parts(task, static_cast<size_t>(model.n_adapters), static_cast<size_t>(model.row_width), writer);
  return {reinterpret_cast<const char*>(out.bytes().data()), out.bytes().size()};
}

StoredTask::StoredTask() : parts_(std::make_unique<Parts>()) {}

StoredTask::~StoredTask() = default;

Status StoredTask::read(const std::string& bytes, const ModelInfo& model) {
  ByteReader in(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  task_ = in.fixed<corosrv_task>();
  PartReader<Parts> reader(in, *parts_);
  visit_parts(task_, static_cast<size_t>(model.n_adapters), static_cast<size_t>(model.row_width), reader);
  if (reader.is_whole() && in.is_at_end()) return Status::ok();
  return Status(StatusCode::kInvalid, "its bytes are not those of a task of this build and model");
}

}  // namespace corosrv
