#include "recording/ring_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/hash.h"

namespace corosrv {

namespace {

using ring_file::kFramesAt;
using ring_file::kMostSegments;
using ring_file::kTableAt;

struct FrameHead {
  uint32_t size;    // of the payload
  uint32_t begins;  // 1: a segment
  uint64_t serial;
  uint64_t check;

  uint64_t expected(const uint8_t* payload) const {
    return hash_of(payload, size, mixed(mixed(kHashSeed, serial), begins));
  }
};
static_assert(sizeof(FrameHead) == 24);

struct Segment {
  uint64_t at;      // of its first frame
  uint64_t serial;  // of that; 0: no segment
};
static_assert(sizeof(Segment) * kMostSegments <= kFramesAt - kTableAt);

bool read_whole(int fd, void* data, size_t size, uint64_t at) {
  auto* bytes = static_cast<uint8_t*>(data);
  while (size > 0) {
    const ssize_t n_read = ::pread(fd, bytes, size, static_cast<off_t>(at));
    if (n_read < 0 && errno == EINTR) continue;
    if (n_read <= 0) return false;
    bytes += n_read;
    size -= static_cast<size_t>(n_read);
    at += static_cast<uint64_t>(n_read);
  }
  return true;
}

}  // namespace

RingWriter::RingWriter(int fd, uint64_t size) : fd_(fd), capacity_(size - kFramesAt) {}

RingWriter::~RingWriter() { ::close(fd_); }

bool RingWriter::write(const void* data, size_t size, uint64_t at) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  while (size > 0) {
    const ssize_t n_written = ::pwrite(fd_, bytes, size, static_cast<off_t>(at));
    if (n_written < 0 && errno == EINTR) continue;
    if (n_written <= 0) {
      failure_ = n_written == 0 ? "nothing more can be written" : std::generic_category().message(errno);
      return false;
    }
    bytes += n_written;
    size -= static_cast<size_t>(n_written);
    at += static_cast<uint64_t>(n_written);
  }
  return true;
}

RingWriter::Result RingWriter::append(const std::vector<uint8_t>& payload, bool begins) {
  const uint64_t size = sizeof(FrameHead) + payload.size();
  if (payload.size() > UINT32_MAX || size > capacity_) return Result::kFull;
  const bool wraps = at_ + size > capacity_;
  const uint64_t at = wraps ? 0 : at_;
  const uint64_t n_taken = size + (wraps ? capacity_ - at_ : 0);
  if (!begins && segment_bytes_ + n_taken > capacity_) return Result::kFull;

  FrameHead head{static_cast<uint32_t>(payload.size()), begins ? 1u : 0u, serial_, 0};
  head.check = head.expected(payload.data());
  frame_.resize(size);
  std::memcpy(frame_.data(), &head, sizeof(head));
  if (!payload.empty()) std::memcpy(frame_.data() + sizeof(head), payload.data(), payload.size());
  if (!write(frame_.data(), frame_.size(), kFramesAt + at)) return Result::kFailed;
  if (begins && !note_segment(at)) return Result::kFailed;
  at_ = at + size;
  ++serial_;
  segment_bytes_ = begins ? size : segment_bytes_ + n_taken;
  return Result::kWritten;
}

bool RingWriter::note_segment(uint64_t at) {
  const Segment segment{at, serial_};
  return write(&segment, sizeof(segment), kTableAt + sizeof(Segment) * (n_segments_++ % kMostSegments));
}

bool RingWriter::forget_segments() {
  const std::array<Segment, kMostSegments> none{};
  return write(none.data(), sizeof(none), kTableAt);
}

RingReader::RingReader(int fd) : fd_(fd) {
  struct stat status;
  if (::fstat(fd_, &status) == 0) size_ = static_cast<uint64_t>(status.st_size);
  std::array<Segment, kMostSegments> segments{};
  if (!read_whole(fd_, segments.data(), sizeof(segments), kTableAt)) return;
  std::sort(segments.begin(), segments.end(), [](const Segment& a, const Segment& b) { return a.serial < b.serial; });
  for (const Segment& segment : segments) {
    if (segment.serial == 0) continue;
    std::vector<uint8_t> payload;
    bool begins = false;
    uint64_t n_bytes = 0;
    serial_ = segment.serial;
    at_ = segment.at;
    if (read_at(at_, payload, begins, n_bytes) && begins) return;
  }
  serial_ = 0;
}

RingReader::~RingReader() { ::close(fd_); }

bool RingReader::read_at(uint64_t at, std::vector<uint8_t>& payload, bool& begins, uint64_t& n_bytes) {
  FrameHead head;
  if (at > size_ || !read_whole(fd_, &head, sizeof(head), kFramesAt + at) || head.serial != serial_) return false;
  is_cut_ = true;  // unless all of it is there
  if (head.size > size_ || head.begins > 1) return false;
  payload.resize(head.size);
  if (!read_whole(fd_, payload.data(), payload.size(), kFramesAt + at + sizeof(head))) return false;
  if (head.check != head.expected(payload.data())) return false;
  is_cut_ = false;
  begins = head.begins != 0;
  n_bytes = sizeof(head) + payload.size();
  return true;
}

bool RingReader::next(std::vector<uint8_t>& payload, bool& begins) {
  uint64_t n_bytes = 0;
  if (serial_ == 0) return false;
  if (!read_at(at_, payload, begins, n_bytes)) {
    const uint64_t begin = kFramesAt + at_;
    if (is_cut_ || !read_at(0, payload, begins, n_bytes)) {  // or the writer went round
      is_cut_ = is_cut_ || (begin < size_ && size_ < begin + sizeof(FrameHead));
      return false;
    }
    at_ = 0;
  }
  at_ += n_bytes;
  ++serial_;
  return true;
}

}  // namespace corosrv
