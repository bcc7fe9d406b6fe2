# Read by CMake at each project() of llama-cpp-python (CMAKE_PROJECT_INCLUDE): leaves out what corosrv never loads.
# llama-cpp-python builds libllama, ggml and libmtmd, all of which stay. It also insists on libllama-common, the code
# shared by llama.cpp's programs (a third of the compiler's work), by a cache entry; a plain variable goes before that.
set(LLAMA_BUILD_COMMON OFF)
