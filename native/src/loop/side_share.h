// How long a side process may run between two steps.
#pragma once

#include <algorithm>
#include <cstdint>

namespace corosrv {

// What decides how long, apart from the steps.
struct SideShare {
  double constant = 0;  // its time as a part of a step's; 0: as many streams and its wait have it
  double itl_s = 0;     // the time between two tokens that a stream may see because of it
  double usual_s = 0;   // that its work usually takes when it runs alone; 0: nobody knows
};

constexpr double kLeastOfParticipants = 0.25;  // of a step's time, beside however many streams
constexpr double kLeastShare = 0.1;            // where steps alone take as long as a token may: it goes on, slowly
constexpr double kPatientUsuals = 4;           // times its usual time that it waits before it gets as much as a step

// Returns its time after a step that took `step_s`, in seconds. It counts as one more participant beside `n_running`
// sequences, and gets more the longer it waits. `delays_tokens`: some of them decode, so that a client waits for the
// next step.
inline double side_time(const SideShare& share, int32_t n_running, bool delays_tokens, double waited_s, double step_s) {
  if (share.constant > 0) return share.constant * step_s;
  const double begin = std::max(1.0 / std::max(n_running, int32_t{1}), kLeastOfParticipants);
  const double patience = share.usual_s > 0 ? std::min(waited_s / (kPatientUsuals * share.usual_s), 1.0) : 0.0;
  const double wanted_s = (begin + (1 - begin) * patience) * step_s;
  if (!delays_tokens) return wanted_s;
  return std::min(wanted_s, std::max(share.itl_s - step_s, kLeastShare * step_s));
}

}  // namespace corosrv
