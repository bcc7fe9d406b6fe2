// Lets new KV caches be full of zeros without taking memory.
#pragma once

namespace corosrv {

// libllama overwrites the whole of a KV cache with zeros when it makes one: that takes gigabytes, and seconds, of which
// most is given back at once. From the first call on, large buffers of the processor get the system's own zeros
// instead, page by page once they are used. Changes nothing where libllama does not call ggml through its table of
// imported functions. Any thread.
void fill_buffers_without_memory();

}  // namespace corosrv
