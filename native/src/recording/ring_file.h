// A file of bounded size that keeps the newest frames: what a recording is made of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace corosrv {

// The file begins with a head, which belongs to whoever opens it (Python: binding/recording.py), and a table of where
// segments begin. Frames follow, from kFramesAt to the end and round again. Each has a length, a serial number and a
// checksum: after a crash the frames up to the last whole one can be read. A segment is a run of frames from whose
// beginning one can read without those before.
namespace ring_file {

constexpr uint64_t kTableAt = 60 * 1024;
constexpr uint64_t kFramesAt = 64 * 1024;
constexpr uint64_t kMostSegments = 128;       // that the table knows: the last ones
constexpr uint64_t kLeastSize = 1024 * 1024;  // of a file

}  // namespace ring_file

// Writes each frame with one system call into the page cache, where it survives the end of the process, however that
// comes. One thread.
class RingWriter {
 public:
  // Takes over `fd`, of a file that has a head. `size`: of the whole file, at most.
  RingWriter(int fd, uint64_t size);
  ~RingWriter();
  RingWriter(const RingWriter&) = delete;
  RingWriter& operator=(const RingWriter&) = delete;

  enum class Result { kWritten, kFull, kFailed };

  // Adds a frame; `begins`: a segment. kFull: the frame would overwrite the beginning of its own segment; kFailed: with
  // failure(). Neither leaves anything behind.
  Result append(const std::vector<uint8_t>& payload, bool begins);
  // What there is so far cannot be followed by what comes: only the segment that begins next can be read.
  bool forget_segments();

  // Bytes of the current segment.
  uint64_t segment_bytes() const { return segment_bytes_; }
  uint64_t capacity() const { return capacity_; }
  const std::string& failure() const { return failure_; }

 private:
  bool write(const void* data, size_t size, uint64_t at);
  bool note_segment(uint64_t at);

  const int fd_;
  const uint64_t capacity_;  // bytes of frames
  uint64_t at_ = 0;          // of the next frame, behind kFramesAt
  uint64_t serial_ = 1;      // of the next frame
  uint64_t segment_bytes_ = 0;
  uint64_t n_segments_ = 0;
  bool has_segment_ = false;
  std::vector<uint8_t> frame_;
  std::string failure_;
};

// Reads from the oldest segment on that is still whole.
class RingReader {
 public:
  // Takes over `fd`.
  explicit RingReader(int fd);
  ~RingReader();
  RingReader(const RingReader&) = delete;
  RingReader& operator=(const RingReader&) = delete;

  // False where there is no segment that could be read.
  bool has_segment() const { return serial_ > 0; }
  // The next frame's payload; false at the end, where is_cut() tells whether a frame was begun there.
  bool next(std::vector<uint8_t>& payload, bool& begins);
  bool is_cut() const { return is_cut_; }

 private:
  bool read_at(uint64_t at, std::vector<uint8_t>& payload, bool& begins, uint64_t& n_bytes);

  const int fd_;
  uint64_t size_ = 0;    // of the file
  uint64_t at_ = 0;      // of the next frame
  uint64_t serial_ = 0;  // of the next frame; 0: there is none
  bool is_cut_ = false;
};

}  // namespace corosrv
