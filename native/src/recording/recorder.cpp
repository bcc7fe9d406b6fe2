#include "recording/recorder.h"

#include <utility>

namespace corosrv {

namespace {

constexpr size_t kUsualFrame = 64 * 1024;  // bytes that are kept for one
constexpr size_t kMostKept = 1 << 20;
constexpr uint64_t kSegments = 8;  // that a file has room for, if moments at which nothing runs come often

}  // namespace

Recorder::Recorder(int fd, uint64_t size) : file_(fd, size), bytes_(kUsualFrame) { begin(); }

void Recorder::begin() {
  bytes_.clear();
  n_false_ = 0;
  last_ = {};
  begins_ = true;
  item(Item::kAnew);
  bytes_.array(shown_.data(), shown_.size());
}

void Recorder::item(Item item) {
  write_looks();
  bytes_.byte(static_cast<uint8_t>(item));
}

void Recorder::write_looks() {
  if (n_false_ == 0) return;
  bytes_.byte(static_cast<uint8_t>(Item::kFalse));
  bytes_.number(std::exchange(n_false_, 0));
}

void Recorder::write_time(Clock::time_point time) { bytes_.difference((time - std::exchange(last_, time)).count()); }

Inbox::Mail Recorder::take(Inbox& inbox, bool has_work, Clock::duration patience) {
  if (!has_work) flush();  // who knows how long it sleeps
  Inbox::Mail mail = inbox.take(has_work, patience);
  shown_.insert(shown_.end(), mail.shown.begin(), mail.shown.end());
  const bool is_empty = mail.submissions.empty() && mail.slot_requests.empty() && mail.shown.empty() &&
                        !mail.has_cancellations && !mail.is_draining;
  if (is_writing_ && !is_empty) {
    write_mail(mail);
    flush();
  }
  for (Submission& submission : mail.submissions) std::string().swap(submission.task.recorded);
  return mail;
}

void Recorder::write_mail(const Inbox::Mail& mail) {
  item(Item::kMail);
  bytes_.byte(static_cast<uint8_t>((mail.has_cancellations ? kMailCancels : 0) | (mail.is_draining ? kMailDrains : 0) |
                                   (mail.is_closing ? kMailCloses : 0)));
  if (mail.is_draining) bytes_.text(mail.reason);
  bytes_.array(mail.shown.data(), mail.shown.size());
  bytes_.number(mail.submissions.size());
  for (const Submission& submission : mail.submissions) {
    bytes_.number(static_cast<uint64_t>(submission.task.index));
    write_time(submission.submitted);
    bytes_.text(submission.task.recorded);
  }
  bytes_.number(mail.slot_requests.size());
  for (const auto& request : mail.slot_requests) {
    const SlotContent& content = request->content();
    const bool restores = request->action() == SlotRequest::Action::kRestore && content.snapshot != nullptr;
    bytes_.byte(static_cast<uint8_t>(request->action()));
    bytes_.number(static_cast<uint64_t>(request->slot()));
    bytes_.fixed(request->owner());
    bytes_.array(content.tokens.data(), content.tokens.size());
    bytes_.array(content.adapters.data(), content.adapters.size());
    bytes_.array(restores ? content.snapshot->bytes.get() : nullptr, restores ? content.snapshot->size : 0);
  }
}

Clock::time_point Recorder::now() {
  const auto time = Clock::now();
  if (is_writing_) {
    item(Item::kTime);
    write_time(time);
  }
  return time;
}

bool Recorder::look(bool found) {
  if (!is_writing_) return found;
  if (!found) {
    ++n_false_;
    return found;
  }
  bytes_.byte(static_cast<uint8_t>(Item::kTrue));
  bytes_.number(std::exchange(n_false_, 0));
  return found;
}

void Recorder::plan(const StepShape& step) {
  if (!is_writing_) return;
  item(Item::kPlan);
  bytes_.number(static_cast<uint64_t>(step.n_decode));
  bytes_.number(static_cast<uint64_t>(step.n_prompt));
  bytes_.number(static_cast<uint64_t>(step.n_drafted));
  bytes_.fixed(step.hash);
}

void Recorder::batch(uint64_t hash) {
  if (!is_writing_) return;
  item(Item::kBatch);
  bytes_.fixed(hash);
  flush();
}

void Recorder::end(const TapedEnd& end) {
  if (!is_writing_) return;
  item(Item::kEnd);
  bytes_.difference(end.task);
  bytes_.byte(static_cast<uint8_t>(end.finish));
  bytes_.number(static_cast<uint64_t>(end.n_generated));
  bytes_.fixed(end.hash);
}

bool Recorder::begins_anew() {
  if (is_over_) return false;
  if (is_writing_ && file_.segment_bytes() < file_.capacity() / kSegments) return false;
  if (is_writing_) flush();
  if (is_over_) return false;
  if (!std::exchange(is_writing_, true)) {
    if (!file_.forget_segments()) {
      stop(file_.failure(), true);
      return false;
    }
    MutexLock lock(mutex_);
    trouble_.clear();
  }
  begin();
  return true;
}

void Recorder::flush() {
  write_looks();
  if (bytes_.is_empty() || !is_writing_) return;
  switch (file_.append(bytes_.bytes(), begins_)) {
    case RingWriter::Result::kWritten:
      begins_ = false;
      break;
    case RingWriter::Result::kFull:
      stop("the file is full, and there was no moment at which nothing ran: it goes on from the next one", false);
      break;
    case RingWriter::Result::kFailed:
      stop(file_.failure(), true);
      break;
  }
  if (bytes_.bytes().size() > kMostKept) bytes_ = ByteWriter(kUsualFrame);
  bytes_.clear();
}

void Recorder::stop(const std::string& reason, bool for_good) {
  is_writing_ = false;
  is_over_ = for_good;
  n_false_ = 0;
  MutexLock lock(mutex_);
  trouble_ = reason;
}

std::string Recorder::trouble() {
  MutexLock lock(mutex_);
  return trouble_;
}

}  // namespace corosrv
