// Model files of which other devices take a part.
#include <ggml.h>
#include <gguf.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "llama/weight_places.h"

namespace corosrv {
namespace {

using Tensors = std::vector<std::pair<std::string, int64_t>>;  // and how many floats they have

constexpr int32_t kLayers = 4;
const Tensors kTable{{"token_embd.weight", 1000}};
const Tensors kEven{{"blk.0.w", 100}, {"blk.1.w", 100}, {"blk.2.w", 100}, {"blk.3.w", 100}};
const Tensors kSteep{{"blk.0.w", 900}, {"blk.1.w", 10}, {"blk.2.w", 10}, {"blk.3.w", 10}};
const Tensors kOutput{{"output.weight", 290}, {"output_norm.weight", 1}};

Tensors operator+(Tensors tensors, const Tensors& more) {
  tensors.insert(tensors.end(), more.begin(), more.end());
  return tensors;
}

// Heads of GGUF files that are gone at the end.
class Files {
 public:
  ~Files() {
    for (const std::string& path : paths_) std::remove(path.c_str());
  }
  // `n_parts`: that the model is split into; 0: the file does not say.
  std::string write(const Tensors& tensors, const std::string& name = ".gguf", uint16_t n_parts = 0) {
    ggml_context* context = ggml_init({tensors.size() * ggml_tensor_overhead(), nullptr, true});
    gguf_context* file = gguf_init_empty();
    if (n_parts > 0) gguf_set_val_u16(file, "split.count", n_parts);
    for (const auto& [tensor_name, size] : tensors) {
      ggml_tensor* tensor = ggml_new_tensor_1d(context, GGML_TYPE_F32, size);
      ggml_set_name(tensor, tensor_name.c_str());
      gguf_add_tensor(file, tensor);
    }
    paths_.push_back("/tmp/corosrv-test-" + std::to_string(::getpid()) + name);
    REQUIRE(gguf_write_to_file(file, paths_.back().c_str(), true));
    gguf_free(file);
    ggml_free(context);
    return paths_.back();
  }

 private:
  std::vector<std::string> paths_;
};

// Up to how many layers on GPUs, the output counted as one, leave more than half of the bytes to the processor.
int32_t most_elsewhere(const std::string& path) {
  int32_t most = -1;
  for (int32_t n = 0; n <= kLayers + 1; ++n) {
    Placement placement;
    placement.gpu_layers = n;
    if (stays_mostly(path, placement, kLayers)) most = n;
  }
  return most;
}

TEST("the bytes of weights decide which device has most of a model") {
  Files files;

  CHECK_EQ(most_elsewhere(files.write(kTable + kEven + kOutput)), 1);  // 400 beside 291, then 300 beside 391
  CHECK_EQ(most_elsewhere(files.write(kTable + kSteep + kOutput)), kLayers);
  CHECK_EQ(most_elsewhere(files.write(kSteep)), kLayers);
}

TEST("the table of tokens is looked up, and counts where it is the output as well") {
  Files files;
  Placement placement;
  placement.gpu_layers = 1;

  CHECK(stays_mostly(files.write(kTable + kEven + kOutput), placement, kLayers));
  CHECK(!stays_mostly(files.write(kTable + kEven), placement, kLayers));
}

TEST("nothing stays where devices have all layers, all of it where there are none to be used") {
  Files files;
  const std::string path = files.write(kTable + kEven + kOutput);
  Placement all, none;
  none.devices = {"none"};

  CHECK(!stays_mostly(path, all, kLayers));
  CHECK(stays_mostly(path, none, kLayers));
}

TEST("all files that a model is split into count") {
  Files files;
  const std::string first =
      files.write(kTable + Tensors{{"blk.0.w", 100}, {"blk.1.w", 100}}, "-00001-of-00002.gguf", 2);
  files.write(Tensors{{"blk.2.w", 10}, {"blk.3.w", 10}, {"output.weight", 500}}, "-00002-of-00002.gguf", 2);

  CHECK_EQ(most_elsewhere(first), 0);
}

TEST("a file that cannot be read is the processor's") {
  Placement placement;
  placement.gpu_layers = 3;

  CHECK(stays_mostly("/nowhere/model.gguf", placement, kLayers));
}

}  // namespace
}  // namespace corosrv
