#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "check.h"
#include "recording/ring_file.h"

namespace corosrv {
namespace {

using Bytes = std::vector<uint8_t>;

// A file without a name.
class Scratch {
 public:
  Scratch() {
    char path[] = "/tmp/corosrv-ring-XXXXXX";
    fd_ = ::mkstemp(path);
    ::unlink(path);
  }
  ~Scratch() { ::close(fd_); }
  int copy() const { return ::dup(fd_); }
  void cut(uint64_t size) const { CHECK_EQ(::ftruncate(fd_, static_cast<off_t>(size)), 0); }
  uint64_t size() const {
    struct stat status;
    CHECK_EQ(::fstat(fd_, &status), 0);
    return static_cast<uint64_t>(status.st_size);
  }
  void flip(uint64_t at) const {
    uint8_t byte = 0;
    CHECK_EQ(::pread(fd_, &byte, 1, static_cast<off_t>(at)), 1);
    byte ^= 1;
    CHECK_EQ(::pwrite(fd_, &byte, 1, static_cast<off_t>(at)), 1);
  }

 private:
  int fd_;
};

Bytes frame_of(uint8_t number, size_t size = 100) { return Bytes(size, number); }

struct Read {
  Bytes numbers;  // the first byte of each frame
  bool is_cut = false;
  bool has_segment = false;
};

Read read_all(const Scratch& file) {
  RingReader reader(file.copy());
  Read read;
  read.has_segment = reader.has_segment();
  Bytes payload;
  bool begins = false;
  while (reader.next(payload, begins)) {
    for (const uint8_t byte : payload) CHECK_EQ(byte, payload[0]);
    read.numbers.push_back(payload.empty() ? uint8_t{0} : payload[0]);
  }
  read.is_cut = reader.is_cut();
  return read;
}

constexpr uint64_t kSize = ring_file::kLeastSize;
constexpr uint64_t kHead = 24;  // bytes of a frame before its payload

TEST("a recording's frames are read as they were written") {
  const Scratch file;
  {
    RingWriter writer(file.copy(), kSize);
    for (uint8_t i = 1; i <= 5; ++i) {
      CHECK_EQ(writer.append(frame_of(i), i == 1), RingWriter::Result::kWritten);
    }
  }

  const Read read = read_all(file);

  CHECK_EQ(read.numbers, (Bytes{1, 2, 3, 4, 5}));
  CHECK(!read.is_cut);
}

TEST("a recording that is cut at any byte gives its whole frames, and tells that one is cut") {
  const Scratch file;
  {
    RingWriter writer(file.copy(), kSize);
    for (uint8_t i = 1; i <= 3; ++i) (void)writer.append(frame_of(i, 40), i == 1);
  }

  for (uint64_t size = file.size(); size-- > 0;) {
    file.cut(size);
    const Read read = read_all(file);
    const uint64_t n_bytes = size <= ring_file::kFramesAt ? 0 : size - ring_file::kFramesAt;
    const uint64_t n_whole = n_bytes / (kHead + 40);
    CHECK_EQ(read.numbers.size(), n_whole);
    CHECK_EQ(read.has_segment, n_whole > 0);
    if (n_whole > 0) CHECK_EQ(read.is_cut, n_bytes % (kHead + 40) != 0);
    if (size < ring_file::kFramesAt) size = std::min<uint64_t>(size, 1);  // there is nothing, down to no byte
  }
}

TEST("a recording with a changed bit ends before the frame that has it") {
  const Scratch file;
  {
    RingWriter writer(file.copy(), kSize);
    for (uint8_t i = 1; i <= 3; ++i) (void)writer.append(frame_of(i, 40), i == 1);
  }
  for (uint64_t offset = 0; offset < kHead + 40; ++offset) {
    const uint64_t at = ring_file::kFramesAt + (kHead + 40) + offset;
    file.flip(at);
    CHECK_EQ(read_all(file).numbers, Bytes{1});
    file.flip(at);
  }
  CHECK_EQ(read_all(file).numbers.size(), size_t{3});
}

TEST("a recording that went round begins with the oldest segment that is whole, and has all behind it") {
  const Scratch file;
  const uint64_t n_fit = (kSize - ring_file::kFramesAt) / (kHead + 10'000);
  for (const int n_frames : {1, 50, 98, 99, 100, 101, 150, 200, 237, 250}) {
    file.cut(0);
    {
      RingWriter writer(file.copy(), kSize);
      for (int i = 0; i < n_frames; ++i) {
        CHECK_EQ(writer.append(frame_of(static_cast<uint8_t>(i), 10'000), i % 10 == 0), RingWriter::Result::kWritten);
      }
      CHECK(file.size() <= kSize);
    }
    const Read read = read_all(file);
    REQUIRE(!read.numbers.empty());
    CHECK_EQ(read.numbers.front() % 10, 0);
    CHECK_EQ(int{read.numbers.back()}, n_frames - 1);
    CHECK_EQ(static_cast<int>(read.numbers.size()), n_frames - read.numbers.front());
    CHECK(read.numbers.size() + 10 >= std::min<size_t>(static_cast<size_t>(n_frames), n_fit));
  }
}

TEST("a segment's beginning is never overwritten by the segment itself") {
  const Scratch file;
  RingWriter writer(file.copy(), kSize);
  REQUIRE(writer.append(frame_of(1, 10'000), true) == RingWriter::Result::kWritten);
  size_t n_written = 1;
  while (writer.append(frame_of(2, 10'000), false) == RingWriter::Result::kWritten) ++n_written;

  CHECK_EQ(read_all(file).numbers.size(), n_written);
  CHECK_EQ(n_written, size_t{(kSize - ring_file::kFramesAt) / (kHead + 10'000)});

  CHECK(writer.forget_segments());
  REQUIRE(writer.append(frame_of(3, 10'000), true) == RingWriter::Result::kWritten);
  CHECK_EQ(read_all(file).numbers, Bytes{3});
}

TEST("a disk that is full is told of, and the frames before are whole") {
  const Scratch file;
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{ring_file::kFramesAt + 5000, ring_file::kFramesAt + 5000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    RingWriter writer(file.copy(), kSize);
    for (int i = 0; i < 4; ++i) {
      if (writer.append(frame_of(7, 1000), i == 0) != RingWriter::Result::kWritten) ::_exit(1);
    }
    const bool has_failed = writer.append(frame_of(8, 1000), false) == RingWriter::Result::kFailed;
    ::_exit(has_failed && !writer.failure().empty() ? 0 : 2);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);

  CHECK_EQ(status, 0);
  CHECK_EQ(read_all(file).numbers, (Bytes{7, 7, 7, 7}));
  CHECK(read_all(file).is_cut);
}

}  // namespace
}  // namespace corosrv
