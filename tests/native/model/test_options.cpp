#include <string>
#include <vector>

#include "check.h"
#include "model/options.h"

namespace corosrv {
namespace {

bool leaves_layers(int32_t gpu_layers, const std::vector<std::string>& devices = {}) {
  Placement placement;
  placement.gpu_layers = gpu_layers;
  placement.devices = devices;
  return placement.leaves_layers_of(32);
}

TEST("layers are left to the processor where fewer are placed on devices than there are, with the output") {
  CHECK(leaves_layers(0));
  CHECK(leaves_layers(31));
  CHECK(leaves_layers(32));
  CHECK(!leaves_layers(33));
  CHECK(!leaves_layers(99, {"CUDA0"}));
  CHECK(!leaves_layers(-1));
}

TEST("all layers are left to the processor where no device is to be used") {
  CHECK(leaves_layers(-1, {"none"}));
  CHECK(leaves_layers(99, {"none"}));
}

}  // namespace
}  // namespace corosrv
