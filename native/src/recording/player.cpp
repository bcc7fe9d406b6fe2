#include "recording/player.h"

#include <cstdio>
#include <utility>

namespace corosrv {

namespace {

constexpr uint64_t kMostTold = 20;  // differences of a kind

const char* word_of(Item item) {
  switch (item) {
    case Item::kNone:
      return "nothing";
    case Item::kAnew:
      return "a new beginning";
    case Item::kTime:
      return "a time";
    case Item::kFalse:
    case Item::kTrue:
      return "a look at a reader";
    case Item::kMail:
      return "mail";
    case Item::kPlan:
      return "a plan";
    case Item::kBatch:
      return "a batch";
    case Item::kEnd:
      return "the end of a text";
  }
  return "bytes that are no item";
}

const char* word_of(Finish finish) {
  switch (finish) {
    case Finish::kUnfinished:
      return "unfinished";
    case Finish::kStop:
      return "stop";
    case Finish::kLength:
      return "length";
    case Finish::kCancelled:
      return "cancelled";
    case Finish::kError:
      return "error";
  }
  return "";
}

std::string hex(uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(number));
  return text;
}

// On one line, whatever is in it.
std::string quoted(const std::string& text) {
  std::string shown = "\"";
  for (const char byte : text) {
    if (byte == '\n') {
      shown += "\\n";
    } else if (byte == '"' || byte == '\\') {
      shown += {'\\', byte};
    } else {
      shown += static_cast<unsigned char>(byte) < 0x20 ? ' ' : byte;
    }
  }
  return shown + '"';
}

}  // namespace

Player::Player(int fd, const Options& options, TaskMaker make_task, Shower show)
    : file_(fd), options_(options), make_task_(std::move(make_task)), show_(std::move(show)) {}

bool Player::fill() {
  bool begins = false;
  while (bytes_.is_at_end()) {
    if (!file_.next(frame_, begins)) return false;
    bytes_ = ByteReader(frame_.data(), frame_.size());
  }
  return true;
}

bool Player::is_next(Item item) { return fill() && bytes_.peek() == static_cast<uint8_t>(item); }

void Player::leave(const std::string& words) {
  collect();
  say(words);
  {
    MutexLock lock(mutex_);
    counts_.is_over = true;
  }
  throw End();
}

void Player::expect(Item item, const char* asked) {
  if (!has_begun_) begin();
  if (!fill()) {
    leave(file_.is_cut() ? "the file ends within a record, or is damaged there: all whole ones before were replayed"
                         : "the recording ends here: all of it was replayed");
  }
  if (bytes_.peek() == static_cast<uint8_t>(item) && n_false_ == 0 && !then_true_) {
    bytes_.byte();
    return;
  }
  const bool has_looks = n_false_ > 0 || then_true_;
  const std::string has = word_of(has_looks ? Item::kFalse : static_cast<Item>(bytes_.peek()));
  differ(std::string("the replay asks for ") + asked + " where the recording has " + has);
  leave("the replay has left the recording, and ends");
}

// The first item of a segment.
void Player::begin() {
  has_begun_ = true;
  expect(Item::kAnew, "a beginning");
  const auto shown = bytes_.array<Token>();
  if (!shown.empty()) show_(shown);
  last_ = {};
}

bool Player::begins_anew() {
  if (!is_next(Item::kAnew) || n_false_ > 0 || then_true_) return false;
  begin();
  return true;
}

Clock::time_point Player::read_time() {
  last_ += Clock::duration(bytes_.difference());
  return last_;
}

Inbox::Mail Player::take(Inbox&, bool has_work, Clock::duration) {
  if (!has_begun_) begin();
  collect();
  Inbox::Mail mail;
  if (!is_next(Item::kMail)) {
    if (!has_work && !fill()) expect(Item::kMail, "mail");
    return mail;
  }
  bytes_.byte();
  const uint8_t bits = bytes_.byte();
  mail.has_cancellations = (bits & kMailCancels) != 0;
  mail.is_draining = (bits & kMailDrains) != 0;
  mail.is_closing = (bits & kMailCloses) != 0;
  if (mail.is_draining) mail.reason = bytes_.text();
  mail.shown = bytes_.array<Token>();
  if (!mail.shown.empty()) show_(mail.shown);
  for (size_t left = bytes_.count(3); left > 0; --left) mail.submissions.push_back(read_submission());
  for (size_t left = bytes_.count(3); left > 0; --left) mail.slot_requests.push_back(read_request());
  if (!bytes_.is_good()) leave("a record cannot be read: the file is damaged");
  return mail;
}

Submission Player::read_submission() {
  const auto index = static_cast<int32_t>(bytes_.number());
  const Clock::time_point submitted = read_time();
  const std::string recorded = bytes_.text();
  Task task;
  if (const Status status = make_task_(recorded, task); !bytes_.is_good() || !status.is_ok()) {
    leave("a job of the recording cannot be made: " + status.message());
  }
  task.index = index;
  if (index == 0 || live_.empty()) {
    live_.push_back({std::make_shared<Reader>(SIZE_MAX, nullptr), ++n_jobs_, 0, {}});
  }
  Live& job = live_.back();
  ++job.n_left;
  job.texts.emplace_back();
  return {std::move(task), job.reader, submitted};
}

std::shared_ptr<SlotRequest> Player::read_request() {
  const auto action = static_cast<SlotRequest::Action>(bytes_.byte());
  const auto slot = static_cast<int32_t>(bytes_.number());
  const auto owner = bytes_.fixed<uint64_t>();
  SlotContent content;
  content.tokens = bytes_.array<Token>();
  content.adapters = bytes_.array<float>();
  const auto state = bytes_.array<uint8_t>();
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->size = state.size();
  snapshot->bytes.reset(new uint8_t[state.size()]);
  std::copy(state.begin(), state.end(), snapshot->bytes.get());
  content.snapshot = std::move(snapshot);
  return std::make_shared<SlotRequest>(action, slot, owner, std::move(content));
}

Clock::time_point Player::now() {
  expect(Item::kTime, "a time");
  return read_time();
}

bool Player::look(bool) {
  if (n_false_ == 0 && !then_true_) {
    const bool is_false = is_next(Item::kFalse);
    expect(is_false ? Item::kFalse : Item::kTrue, "a look at a reader");
    n_false_ = bytes_.number();
    then_true_ = !is_false;
  }
  if (n_false_ == 0) return std::exchange(then_true_, false);
  --n_false_;
  return false;
}

void Player::plan(const StepShape& step) {
  expect(Item::kPlan, "a plan");
  uint64_t number;
  {
    MutexLock lock(mutex_);
    number = ++counts_.steps;
  }
  const auto n_decode = static_cast<int32_t>(bytes_.number());
  const auto n_prompt = static_cast<int32_t>(bytes_.number());
  const auto n_drafted = static_cast<int32_t>(bytes_.number());
  const auto hash = bytes_.fixed<uint64_t>();
  if (number > options_.until) {
    {
      MutexLock lock(mutex_);
      --counts_.steps;
    }
    leave("the last step that was asked for is over");
  }
  if (options_.tells_steps) {
    say("step " + std::to_string(number) + ": " + std::to_string(step.n_decode) + " rows decode, " +
        std::to_string(step.n_prompt) + " of prompts, " + std::to_string(step.n_drafted) + " guesses, plan " +
        hex(step.hash));
  }
  const bool is_same = n_decode == step.n_decode && n_prompt == step.n_prompt && n_drafted == step.n_drafted;
  if (!is_same || hash != step.hash) differ("plan differs");
}

void Player::batch(uint64_t hash) {
  expect(Item::kBatch, "a batch");
  const auto recorded = bytes_.fixed<uint64_t>();
  if (options_.tells_steps) say("  batch " + hex(hash));
  if (recorded != hash) differ("batch differs");
}

void Player::end(const TapedEnd& end) {
  expect(Item::kEnd, "the end of a text");
  TapedEnd recorded;
  recorded.task = bytes_.difference();
  recorded.finish = static_cast<Finish>(bytes_.byte());
  recorded.n_generated = static_cast<int32_t>(bytes_.number());
  recorded.hash = bytes_.fixed<uint64_t>();
  const bool is_same = recorded.task == end.task && recorded.finish == end.finish &&
                       recorded.n_generated == end.n_generated && recorded.hash == end.hash;
  uint64_t number, n_differ;
  {
    MutexLock lock(mutex_);
    number = ++counts_.texts;
    n_differ = counts_.texts_differ += is_same ? 0 : 1;
  }
  const std::string words = "text " + std::to_string(number) + " (task " + std::to_string(end.task) + ", " +
                            word_of(end.finish) + ", " + std::to_string(end.n_generated) + " tokens) ";
  if (options_.tells_steps) say(words + hex(end.hash));
  if (is_same || n_differ > kMostTold) return;
  say(words + "differs: the recording has " + word_of(recorded.finish) + ", " + std::to_string(recorded.n_generated) +
      " tokens, " + hex(recorded.hash));
}

// Takes what readers have, so that it does not pile up.
void Player::collect() {
  for (auto job = live_.begin(); job != live_.end();) {
    job->reader->take(chunks_);
    for (const Chunk& chunk : chunks_) {
      std::string& text = job->texts[static_cast<size_t>(chunk.index)];
      if (options_.tells_texts) text += chunk.text;
      if (chunk.finish == Finish::kUnfinished) continue;
      --job->n_left;
      if (!options_.tells_texts) continue;
      say("job " + std::to_string(job->number) + "." + std::to_string(chunk.index) + " " + word_of(chunk.finish) +
          ": " + quoted(text));
    }
    job = job->n_left == 0 ? live_.erase(job) : std::next(job);
  }
}

void Player::say(const std::string& line) {
  MutexLock lock(mutex_);
  lines_ += line + '\n';
}

void Player::differ(const std::string& what) {
  MutexLock lock(mutex_);
  if (differs_at_ != counts_.steps || counts_.steps_differ == 0) ++counts_.steps_differ;
  differs_at_ = counts_.steps;
  if (counts_.steps_differ <= kMostTold) lines_ += "step " + std::to_string(counts_.steps) + ": " + what + '\n';
}

std::string Player::take_lines(ReplayCounts& counts) {
  MutexLock lock(mutex_);
  counts = counts_;
  return std::exchange(lines_, {});
}

}  // namespace corosrv
