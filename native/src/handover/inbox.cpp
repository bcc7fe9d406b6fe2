#include "handover/inbox.h"

#include <algorithm>
#include <utility>

namespace corosrv {

Chunk error_chunk(int32_t index, std::string message, const char* code) {
  Chunk chunk;
  chunk.index = index;
  chunk.finish = Finish::kError;
  chunk.text = std::move(message);
  chunk.code = code;
  return chunk;
}

Status Inbox::submit(std::vector<Task> tasks, const std::shared_ptr<Reader>& reader) {
  {
    MutexLock lock(mutex_);
    if (mail_.is_draining) return Status(StatusCode::kClosed, mail_.reason);
    const uint64_t owner = tasks.empty() ? 0 : tasks.front().sharing_scope.owner;
    if (Status status = room_for(tasks.size(), owner); !status.is_ok()) {
      refused_ += tasks.size();
      return status;
    }
    const auto now = Clock::now();
    count(tasks.size(), owner, now);
    if (!reader->is_open()) ++readers_polled_;
    for (Task& task : tasks) mail_.submissions.push_back({std::move(task), reader, now});
    is_woken_ = true;
  }
  changed_.notify_one();
  return Status::ok();
}

void Inbox::count(size_t count, uint64_t owner, Clock::time_point now) {
  if (in_flight_ == 0) ends_.pass(now, false);
  in_flight_ += count;
  if (owner == 0) return;
  Owned& owned = owned_[owner];
  if (owned.in_flight == 0) owned.ends.pass(now, false);
  owned.in_flight += count;
}

double Inbox::retry_after(size_t count, uint64_t owner) {
  MutexLock lock(mutex_);
  const auto now = Clock::now();
  double wait_s = 0;
  if (in_flight_ + count > capacity_) {
    ends_.pass(now, in_flight_ > 0);
    wait_s = room_.next(in_flight_ + count - capacity_, count, ends_.seconds_of_one(), now);
  }
  const auto found = owned_.find(owner);
  if (found == owned_.end() || found->second.in_flight + count <= of_one_) return wait_s;
  Owned& owned = found->second;
  owned.ends.pass(now, true);
  return std::max(wait_s, owned.room.next(owned.in_flight + count - of_one_, count, owned.ends.seconds_of_one(), now));
}

Status Inbox::room_for(size_t count, uint64_t owner) {
  if (in_flight_ + count > capacity_) {
    return Status(StatusCode::kQueueFull, std::to_string(in_flight_) + " of at most " + std::to_string(capacity_) +
                                              " tasks run or wait for a slot; try again later");
  }
  const auto found = owned_.find(owner);
  const size_t n_owned = found == owned_.end() ? 0 : found->second.in_flight;
  if (owner == 0 || n_owned + count <= of_one_) return Status::ok();
  return Status(StatusCode::kQueueFull, std::to_string(n_owned) + " of at most " + std::to_string(of_one_) +
                                            " tasks of this API key run or wait for a slot; try again later");
}

void Inbox::note_shown(const std::vector<Token>& tokens) {
  MutexLock lock(mutex_);
  mail_.shown.insert(mail_.shown.end(), tokens.begin(), tokens.end());
}

Status Inbox::request_slot(std::shared_ptr<SlotRequest> request) {
  {
    MutexLock lock(mutex_);
    if (mail_.is_draining) return Status(StatusCode::kClosed, mail_.reason);
    mail_.slot_requests.push_back(std::move(request));
    is_woken_ = true;
  }
  changed_.notify_one();
  return Status::ok();
}

void Inbox::on_cancel() {
  {
    MutexLock lock(mutex_);
    mail_.has_cancellations = true;
    is_woken_ = true;
  }
  changed_.notify_one();
}

void Inbox::on_room() {
  {
    MutexLock lock(mutex_);
    is_woken_ = true;
  }
  changed_.notify_one();
}

void Inbox::drain(const std::string& reason) {
  {
    MutexLock lock(mutex_);
    if (!mail_.is_draining) mail_.reason = reason;
    mail_.is_draining = true;
    is_woken_ = true;
  }
  changed_.notify_one();
}

void Inbox::close(const std::string& reason) {
  {
    MutexLock lock(mutex_);
    if (!mail_.is_draining) mail_.reason = reason;
    mail_.is_draining = mail_.is_closing = true;
    is_woken_ = true;
  }
  changed_.notify_one();
}

Inbox::Mail Inbox::take(bool has_work, Clock::duration patience) {
  const bool is_patient = patience < Clock::duration::zero();
  const auto deadline = Clock::now() + (is_patient ? Clock::duration::zero() : patience);
  MutexLock lock(mutex_);
  while (!is_woken_ && !has_work) {
    if (is_patient) {
      changed_.wait(mutex_);
    } else if (changed_.wait_until(mutex_, deadline) == std::cv_status::timeout) {
      break;
    }
  }
  is_woken_ = false;
  Mail mail = std::move(mail_);
  // Draining and closing are for good; the rest is taken once.
  mail_ = Mail();
  mail_.is_draining = mail.is_draining;
  mail_.is_closing = mail.is_closing;
  mail_.reason = mail.reason;
  return mail;
}

void Inbox::ended(const std::vector<uint64_t>& owners) {
  MutexLock lock(mutex_);
  const auto now = Clock::now();
  ends_.pass(now, in_flight_ > 0);
  ends_.add(owners.size());
  in_flight_ -= std::min(in_flight_, owners.size());  // a replay's came from elsewhere
  for (const uint64_t owner : owners) {
    const auto found = owned_.find(owner);
    if (found == owned_.end()) continue;
    found->second.ends.pass(now, true);
    found->second.ends.add(1);
    if (--found->second.in_flight == 0) owned_.erase(found);
  }
}

size_t Inbox::in_flight() {
  MutexLock lock(mutex_);
  return in_flight_;
}

uint64_t Inbox::refused() {
  MutexLock lock(mutex_);
  return refused_;
}

uint64_t Inbox::readers_polled() {
  MutexLock lock(mutex_);
  return readers_polled_;
}

}  // namespace corosrv
