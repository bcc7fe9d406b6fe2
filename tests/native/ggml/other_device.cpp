#include "other_device.h"

#include <ggml-cpu.h>
#include <ggml.h>

#include <cstring>

// The tables of functions that ggml calls, in its order (version 2 of its interface for devices). `Unused` stands for
// what a device need not have.
using Unused = void (*)();

struct ggml_backend_buffer_type {
  const char* (*name)(ggml_backend_buffer_type_t);
  ggml_backend_buffer_t (*allocate)(ggml_backend_buffer_type_t, size_t);
  size_t (*alignment)(ggml_backend_buffer_type_t);
  Unused max_size, allocated_size;
  bool (*is_host)(ggml_backend_buffer_type_t);
  ggml_backend_dev_t device;
  void* context;
};

struct BufferTable {
  void (*free)(ggml_backend_buffer_t);
  void* (*base)(ggml_backend_buffer_t);
  Unused init_tensor;
  void (*fill)(ggml_backend_buffer_t, ggml_tensor*, uint8_t, size_t, size_t);
  void (*set)(ggml_backend_buffer_t, ggml_tensor*, const void*, size_t, size_t);
  void (*get)(ggml_backend_buffer_t, const ggml_tensor*, void*, size_t, size_t);
  Unused set_2d, get_2d, copy;
  void (*clear)(ggml_backend_buffer_t, uint8_t);
  Unused reset;
};

struct ggml_backend_buffer {
  BufferTable table;
  ggml_backend_buffer_type_t type;
  void* context;
  size_t size;
  ggml_backend_buffer_usage usage;
};

struct ggml_backend {
  ggml_guid_t guid;
  const char* (*name)(ggml_backend_t);
  void (*free)(ggml_backend_t);
  Unused set_async, get_async, set_2d_async, get_2d_async, copy_async, synchronize;
  Unused create_plan, free_plan, update_plan, compute_plan;
  ggml_status (*compute)(ggml_backend_t, ggml_cgraph*);
  Unused record_event, wait_for_event, optimize;
  ggml_backend_dev_t device;
  void* context;
};

struct ggml_backend_device {
  const char* (*name)(ggml_backend_dev_t);
  const char* (*description)(ggml_backend_dev_t);
  void (*memory)(ggml_backend_dev_t, size_t*, size_t*);
  enum ggml_backend_dev_type (*type)(ggml_backend_dev_t);
  void (*properties)(ggml_backend_dev_t, ggml_backend_dev_props*);
  ggml_backend_t (*open)(ggml_backend_dev_t, const char*);
  ggml_backend_buffer_type_t (*memory_type)(ggml_backend_dev_t);
  ggml_backend_buffer_type_t (*host_memory_type)(ggml_backend_dev_t);
  Unused from_pointer;
  bool (*can_compute)(ggml_backend_dev_t, const ggml_tensor*);
  bool (*can_read)(ggml_backend_dev_t, ggml_backend_buffer_type_t);
  Unused wants, new_event, free_event, wait_for_event;
  ggml_backend_reg_t registry;
  void* context;
};

struct ggml_backend_reg {
  int version;
  const char* (*name)(ggml_backend_reg_t);
  size_t (*n_devices)(ggml_backend_reg_t);
  ggml_backend_dev_t (*device)(ggml_backend_reg_t, size_t);
  void* (*find_function)(ggml_backend_reg_t, const char*);
  void* context;
};

extern "C" ggml_backend_buffer_t ggml_backend_buffer_init(ggml_backend_buffer_type_t, BufferTable, void*, size_t);

namespace corosrv {
namespace {

size_t n_computed = 0;

ggml_backend_buffer_t held_by(ggml_backend_buffer_t buffer) {
  return static_cast<ggml_backend_buffer_t>(buffer->context);
}

char* at(const ggml_tensor* tensor, size_t offset) { return static_cast<char*>(tensor->data) + offset; }

constexpr BufferTable kBuffer{
    [](ggml_backend_buffer_t buffer) { ggml_backend_buffer_free(held_by(buffer)); },
    [](ggml_backend_buffer_t buffer) { return ggml_backend_buffer_get_base(held_by(buffer)); },
    nullptr,
    [](ggml_backend_buffer_t, ggml_tensor* tensor, uint8_t value, size_t offset, size_t size) {
      std::memset(at(tensor, offset), value, size);
    },
    [](ggml_backend_buffer_t, ggml_tensor* tensor, const void* data, size_t offset, size_t size) {
      std::memcpy(at(tensor, offset), data, size);
    },
    [](ggml_backend_buffer_t, const ggml_tensor* tensor, void* data, size_t offset, size_t size) {
      std::memcpy(data, at(tensor, offset), size);
    },
    nullptr,
    nullptr,
    nullptr,
    [](ggml_backend_buffer_t buffer, uint8_t value) { ggml_backend_buffer_clear(held_by(buffer), value); },
    nullptr};

ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, size_t size) {
  return ggml_backend_buffer_init(type, kBuffer, ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size),
                                  size);
}

const char* name_of_memory(ggml_backend_buffer_type_t) { return "Other"; }
const char* name_of_backend(ggml_backend_t) { return "Other0"; }
const char* name_of_device(ggml_backend_dev_t) { return "Other0"; }
size_t alignment(ggml_backend_buffer_type_t) { return 64; }

ggml_status compute(ggml_backend_t backend, ggml_cgraph* graph) {
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    if (ggml_graph_node(graph, i)->op == GGML_OP_CUSTOM) return GGML_STATUS_FAILED;
    ++n_computed;
  }
  return ggml_backend_graph_compute(static_cast<ggml_backend_t>(backend->context), graph);
}

void close(ggml_backend_t backend) {
  ggml_backend_free(static_cast<ggml_backend_t>(backend->context));
  delete backend;
}

ggml_backend_t open(ggml_backend_dev_t device, const char*) {
  auto* backend = new ggml_backend{};
  backend->name = name_of_backend;
  backend->free = close;
  backend->compute = compute;
  backend->device = device;
  backend->context = ggml_backend_cpu_init();
  return backend;
}

bool can_compute(ggml_backend_dev_t, const ggml_tensor* node) {
  return node->op != GGML_OP_CUSTOM &&
         ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), node);
}

ggml_backend_buffer_type memory_of(ggml_backend_dev_t device, bool is_visible) {
  ggml_backend_buffer_type type{};
  type.name = name_of_memory;
  type.allocate = allocate;
  type.alignment = alignment;
  if (is_visible) type.is_host = [](ggml_backend_buffer_type_t) { return true; };
  type.device = device;
  return type;
}

}  // namespace

OtherMemory other_memory() {
  static ggml_backend_buffer_type own = memory_of(other_device(), false);
  static ggml_backend_buffer_type visible = memory_of(other_device(), true);
  static ggml_backend_buffer_type lent = memory_of(other_device(), true);
  return {&own, &visible, &lent};
}

ggml_backend_dev_t other_device() {
  static ggml_backend_device device = [] {
    ggml_backend_device made{};
    made.name = made.description = name_of_device;
    made.memory = [](ggml_backend_dev_t, size_t* free, size_t* total) { *free = *total = size_t{8} << 30; };
    made.type = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; };
    made.properties = [](ggml_backend_dev_t, ggml_backend_dev_props* properties) { *properties = {}; };
    made.open = open;
    made.memory_type = [](ggml_backend_dev_t) { return other_memory().own; };
    made.host_memory_type = [](ggml_backend_dev_t) { return other_memory().lent; };
    made.can_compute = can_compute;
    made.can_read = [](ggml_backend_dev_t, ggml_backend_buffer_type_t type) { return type == other_memory().own; };
    return made;
  }();
  return &device;
}

size_t n_computed_elsewhere() { return n_computed; }

void register_other_device() {
  static ggml_backend_reg registry{2,
                                   [](ggml_backend_reg_t) { return "Other"; },
                                   [](ggml_backend_reg_t) { return size_t{1}; },
                                   [](ggml_backend_reg_t, size_t) { return other_device(); },
                                   [](ggml_backend_reg_t, const char*) -> void* { return nullptr; },
                                   nullptr};
  other_device()->registry = &registry;
  ggml_backend_register(&registry);
}

}  // namespace corosrv
