#include <string>
#include <vector>

#include "check.h"
#include "model/options.h"

namespace corosrv {
namespace {

int32_t n_kept(int32_t gpu_layers, const std::vector<std::string>& devices = {}) {
  Placement placement;
  placement.gpu_layers = gpu_layers;
  placement.devices = devices;
  return placement.n_kept(32);
}

TEST("layers go to devices from the last one on, and before them the output") {
  CHECK_EQ(n_kept(0), 33);
  CHECK_EQ(n_kept(1), 32);
  CHECK_EQ(n_kept(31), 2);
  CHECK_EQ(n_kept(32), 1);
  CHECK_EQ(n_kept(33), 0);
  CHECK_EQ(n_kept(99, {"CUDA0"}), 0);
  CHECK_EQ(n_kept(-1), 0);
}

TEST("all layers stay on the processor where no device is to be used") {
  CHECK_EQ(n_kept(-1, {"none"}), 33);
  CHECK_EQ(n_kept(99, {"none"}), 33);
}

}  // namespace
}  // namespace corosrv
